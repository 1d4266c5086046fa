"""Grammars that recurse deeply end with an answer, and not with the process."""

import json
import subprocess
import sys

import pytest

from engine.validation import MAX_GRAMMAR_BYTES

CHILD = """
import sys
import numpy as np
from engine.api import Grammar
from engine.grammar.compiled import CompiledGrammar, GrammarError
from engine.grammar.source import _bytes, problem_of
from engine.grammar.vocabulary import Vocabulary
grammar = Grammar(kind=sys.argv[1], source=sys.stdin.read())
problem_of(grammar)
vocabulary = Vocabulary(_bytes(), 257)
try:
    matcher = CompiledGrammar(grammar, vocabulary).matcher()
except GrammarError:
    sys.exit()
words = vocabulary.new_words(1)
for _ in range(20):
    matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
    allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:256])
    if matcher.is_error() or matcher.is_stopped() or not len(allowed):
        break
    matcher.consume_tokens([int(allowed[-1])])
"""


def rules(body: str) -> str:
    """As many rules as there is room for, each of which leads to the next."""
    lines: list[str] = []
    room, name = MAX_GRAMMAR_BYTES - 20, "start"
    while room > 0:
        following = f"a{len(lines):x}"
        lines.append(f"{name}:{body.format(following)}\n")
        room, name = room - len(lines[-1]), following
    return "".join(lines[:-1]) + f'{lines[-1].partition(":")[0]}:"x"\n'


def terminals(body: str) -> str:
    return rules(body).upper().replace("START:", "start:A\nA:").replace('"X"', '"x"')


def schemas(body: str) -> str:
    whole: dict[str, object] = {}
    room = MAX_GRAMMAR_BYTES - 60
    while room > 40:
        name, leads = f"{len(whole):x}", f'{{"$ref":"#/$defs/{len(whole) + 1:x}"}}'
        whole[name] = json.loads(body.replace("NEXT", leads))
        room -= len(name) + 4 + len(json.dumps(whole[name], separators=(",", ":")))
    whole[f"{len(whole):x}"] = {}
    return json.dumps({"$ref": "#/$defs/0", "$defs": whole}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("lark", rules("{}")),
        ("lark", terminals('"X"{}')),
        ("json_schema", schemas("NEXT")),
        ("json_schema", schemas('{"items":NEXT}')),
    ],
    ids=["rules", "terminals", "refs", "arrays"],
)
def test_a_deep_grammar_does_not_end_the_process(kind: str, source: str) -> None:
    assert MAX_GRAMMAR_BYTES * 0.9 < len(source) <= MAX_GRAMMAR_BYTES
    done = subprocess.run(
        [sys.executable, "-c", CHILD, kind], input=source, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
