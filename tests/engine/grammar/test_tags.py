"""Free text whose structures are held from their triggers on, spelled or as control tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from engine.grammar.compiled import CompiledGrammar
from engine.grammar.lark import Tag, tag_grammar
from engine.grammar.source import problem_of
from tests.app.generation.walks import new_tokenizer, vocabulary_of, walk

FLAT = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
TAGS = [
    Tag("<f=", "<f=go>", FLAT | {"additionalProperties": False}, "</f>"),
    Tag("<f=", "<f=no>", {"const": 7}, "</f>"),
    Tag("<|x|>", "<|x|>", {"type": "boolean"}, "<|y|>"),
]


@pytest.mark.parametrize("control", [(), ("<|x|>", "<|y|>")])
def test_structures_are_held_wherever_they_begin(control: tuple[str, ...], tmp_path: Path) -> None:
    tokenizer = new_tokenizer(control, [] if control else ["<|x|>", "<f="])
    vocabulary = vocabulary_of(tokenizer, tmp_path)
    tokens = {text: tokenizer.convert_tokens_to_ids(text) for text in control}
    grammar = tag_grammar(TAGS, tokens)
    assert problem_of(grammar) is None
    assert set(grammar.tokens) == set(tokens.values())
    compiled = CompiledGrammar(grammar, vocabulary)
    for text, is_whole in (
        ("a < b, </f> and so on", True),
        ('Well <f=go>{"a": 1}</f> then <f=no>7</f><|x|>true<|y|>.', True),
        ("", True),
        ('<f=go>{"a": 1}</f', False),
        ("<|x|>", False),
    ):
        matcher = compiled.matcher()
        ids = tokenizer.encode(text)
        assert matcher.try_consume_tokens(ids) == len(ids), text
        assert matcher.is_accepting() is is_whole, text
    for text in ("<f=g>", '<f=go>{"a": 3', "<f= ", "a <f=no>8", "<|x|>maybe"):
        ids = tokenizer.encode(text)
        assert compiled.matcher().try_consume_tokens(ids) < len(ids), text
    for seed in range(3):
        ids = walk(grammar, tokenizer, vocabulary, seed, tokenizer.encode("So <f=go>"))
        said = tokenizer.decode(ids)
        found = re.match(r"So <f=go>(.*?)</f>", said, re.DOTALL)
        assert found is not None, said
        assert json.loads(found[1])["a"] in (1, 2)
