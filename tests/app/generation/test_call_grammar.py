"""Answers that are held to calls: what any model would have to say is read as valid calls."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from transformers import PreTrainedTokenizerFast

from app.formats.tools.format import Shape, Unwritable
from app.formats.tools.formats import FORMATS
from app.formats.tools.parser import ToolParser
from app.generation.answer_grammar import call_grammar
from app.generation.detokenizer import Detokenizer
from app.prompt.tokenizer import control_tokens
from engine.api import Grammar
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.source import problem_of
from engine.validation import MAX_GRAMMAR_BYTES
from tests.app.generation.walks import new_tokenizer, vocabulary_of, walk
from tests.effort import scaled

WALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where it is."},
        "unit": {"type": "string", "enum": ["brick", "it's"]},
        "height": {"type": "integer", "minimum": 1, "maximum": 400},
        "ratio": {"type": "number", "minimum": -2, "maximum": 9.5},
        "shared": {"type": ["boolean", "null"]},
        "doors": {"type": "array", "items": {"$ref": "#/$defs/door"}},
        "next": {"anyOf": [{"$ref": "#/$defs/door"}, {"type": "null"}]},
    },
    "required": ["city", "height", "doors"],
    "additionalProperties": False,
    "$defs": {
        "door": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 6}, "wide": {"type": "boolean"}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}
OPTIONAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string"},
        "c": {"type": "object", "properties": {"d": {"type": "array"}}},
    },
}
SCHEMAS: dict[str, dict[str, Any] | None] = {"wall": WALL, "wall_2": OPTIONAL, "now": None}
SHAPES = [Shape.of(name, schema, True) for name, schema in SCHEMAS.items()]
STYLES = [(name, control) for name in FORMATS for control in (False, True)]
Part = tuple[str, str]


class Held:
    """A format, over a tokenizer that has its markers as control tokens, or as texts."""

    def __init__(self, name: Any, control: bool, folder: Path) -> None:
        self.form = FORMATS[name]
        markers = tuple(one for one in self.form.markers if one != "functools")
        self.tokenizer: PreTrainedTokenizerFast = (
            new_tokenizer(markers) if control else new_tokenizer((), markers)
        )
        self.tokens = control_tokens(self.tokenizer, markers)
        self.vocabulary = vocabulary_of(self.tokenizer, folder)

    def grammar(self, **options: Any) -> Grammar:
        """Of calls of all functions; refused for no reason."""
        asked: dict[str, Any] = {"parallel": True, "required": True, **options}
        grammar = call_grammar(self.form, self.tokens, asked.pop("shapes", SHAPES), **asked)
        assert problem_of(grammar) is None, (problem_of(grammar), grammar.source)
        return grammar

    def walk(self, grammar: Grammar, seed: int, start: str = "") -> list[int]:
        ids = self.tokenizer.encode(start)
        return walk(grammar, self.tokenizer, self.vocabulary, seed, ids)

    @property
    def opening(self) -> str:
        """How a call of `now` begins."""
        before, name, after = self.form.write([("now", {})]).partition("now")
        return before + name + (after[0] if after[0] in '"(' else "")

    def read(self, *pieces: list[int]) -> list[Part]:
        """What an answer's tokens tell that come in such pieces, neighbours of a kind as one."""
        detokenizer = Detokenizer(self.tokenizer, shown=self.form.markers)
        reader = ToolParser(self.form, {name: of or {} for name, of in SCHEMAS.items()})
        parts = [part for ids in pieces for part in reader.push(detokenizer.push(ids))]
        parts += [*reader.push(detokenizer.finish()), *reader.finish()]
        merged: list[Part] = []
        for part in parts:
            if merged and merged[-1][0] == part.kind != "call":
                merged[-1] = (part.kind, merged[-1][1] + part.text)
            else:
                merged.append((part.kind, part.text))
        return merged


@pytest.fixture(params=STYLES, ids=lambda style: f"{style[0]}-{'tokens' if style[1] else 'text'}")
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Held:
    return Held(*request.param, tmp_path)


def valid_calls(parts: list[Part]) -> list[tuple[str, Any]]:
    """The calls of an answer, all of whose arguments are valid."""
    calls = []
    for (kind, name), (_, text) in pairwise(parts):
        if kind == "call":
            arguments = json.loads(text)
            jsonschema_rs.validator_for(SCHEMAS[name] or {"maxProperties": 0}).validate(arguments)
            calls.append((name, arguments))
    assert len(calls) == sum(kind == "call" for kind, _ in parts)
    return calls


@pytest.mark.scaled
def test_whatever_is_drawn_is_read_as_calls_that_are_valid(held: Held) -> None:
    grammar = held.grammar()
    for seed in range(scaled(4, most=200)):
        parts = held.read(held.walk(grammar, seed))
        assert {kind for kind, _ in parts} == {"call", "arguments"}, parts
        assert valid_calls(parts)


def test_a_single_call_is_all_where_they_may_not_be_parallel(held: Held) -> None:
    grammar = held.grammar(parallel=False)
    for seed in range(3):
        assert len(valid_calls(held.read(held.walk(grammar, seed)))) == 1


def test_calls_end_by_themselves(held: Held) -> None:
    """Whatever a model would rather say: there are eight, or two for each function."""
    several = [Shape.of(name, None, True) for name in ("now", "wall", "wall_2", "x", "y")]
    for shapes, most in ((SHAPES[2:], 8), (several, 10)):
        grammar = held.grammar(shapes=shapes)
        matcher = CompiledGrammar(grammar, held.vocabulary).matcher()
        for count, allowed in ((most, True), (most + 1, False)):
            ids = held.tokenizer.encode(held.form.write([("now", {})] * count))
            matcher.reset()
            assert (matcher.try_consume_tokens(ids) == len(ids)) is allowed, (count, most)


@pytest.mark.scaled
def test_free_text_goes_on_until_a_call_begins(held: Held) -> None:
    grammar = held.grammar(required=False)
    whole = held.form in (FORMATS["llama"], FORMATS["pythonic"])
    for seed in range(scaled(3, most=100)):
        start = held.opening if whole else f"Hm, a {seed}. {held.opening}"
        parts = held.read(held.walk(grammar, seed, start))
        assert valid_calls(parts)
        said = [text for kind, text in parts if kind == "text"]
        assert said == ([] if whole else [f"Hm, a {seed}."])


def test_what_a_form_writes_is_among_what_is_allowed(held: Held) -> None:
    """A model that calls as its template shows is not led astray."""
    if held.form is FORMATS["pythonic"]:  # writes Python's own words for what are JSON's here
        return
    call = ("wall", {"city": "Bonn", "height": 2, "doors": []})
    ids = held.tokenizer.encode(held.form.write([call, ("now", {})]))
    for grammar in (held.grammar(), held.grammar(required=False)):
        matcher = CompiledGrammar(grammar, held.vocabulary).matcher()
        assert matcher.try_consume_tokens(ids) == len(ids), held.tokenizer.decode(ids)
        assert matcher.is_accepting()


def test_any_text_is_allowed_that_calls_nothing(held: Held) -> None:
    grammar = held.grammar(required=False)
    for text in ("", "Hello!\n\nA <b>list</b>: [1, 2], {'a': 1} functools.partial(x) 😀", "  \n"):
        matcher = CompiledGrammar(grammar, held.vocabulary).matcher()
        ids = held.tokenizer.encode(text)
        assert matcher.try_consume_tokens(ids) == len(ids), text
        assert matcher.is_accepting()


@pytest.mark.scaled
def test_answers_are_read_the_same_wherever_their_tokens_are_cut(held: Held) -> None:
    grammar = held.grammar(shapes=SHAPES[1:])
    for seed in range(scaled(2, most=30)):
        ids = held.walk(grammar, seed)[:400]
        whole = held.read(ids)
        assert held.read(*([one] for one in ids)) == whole
        for cut in range(0, len(ids), scaled(7, most=1) or 1):
            assert held.read(ids[:cut], ids[cut:]) == whole


@pytest.mark.scaled
def test_a_format_stands_beside_calls(held: Held) -> None:
    schema = '{"type":"object","properties":{"title":{"type":"string"}},'
    schema += '"additionalProperties":false}'
    beside = Grammar(kind="json_schema", source=schema)
    grammar = held.grammar(required=False, beside=beside)
    for seed in range(scaled(2, most=50)):
        [(kind, text)] = held.read(held.walk(grammar, seed, '{"t'))
        assert kind == "text"
        jsonschema_rs.validator_for(json.loads(schema)).validate(json.loads(text))
        assert valid_calls(held.read(held.walk(grammar, seed, held.opening)))


@pytest.mark.parametrize("kind", ["regex", "lark"])
def test_so_do_formats_of_other_kinds(held: Held, kind: Any) -> None:
    source = "yes|no/[a-c]" if kind == "regex" else 'start: x\nx: "yes" | "no/" /[a-c]/'
    grammar = held.grammar(required=False, beside=Grammar(kind=kind, source=source))
    for text in ("yes", "no/b"):
        matcher = CompiledGrammar(grammar, held.vocabulary).matcher()
        assert matcher.try_consume_tokens(held.tokenizer.encode(text)) == len(text)
        assert matcher.is_accepting()
    assert valid_calls(held.read(held.walk(held.grammar(), 1)))


TEXTS = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "pattern": "^[A-C]{2,3}$"},
        "part": {"type": "string", "pattern": "[x-z1]"},
        "size": {"type": "string", "minLength": 2, "maxLength": 4},
    },
    "required": ["code", "part", "size"],
}


def test_texts_without_quotes_are_held_to_their_patterns(tmp_path: Path) -> None:
    held = Held("xml", True, tmp_path)
    grammar = held.grammar(shapes=[Shape.of("wall_2", TEXTS, True)])
    ids = held.tokenizer.encode("</parameter>")
    assert len(ids) > 1  # so that a walk has to spell it
    for seed in range(5):
        for _, arguments in parts_of(held.read(held.walk(grammar, seed))):
            jsonschema_rs.validator_for(TEXTS).validate(json.loads(arguments))


def parts_of(parts: list[Part]) -> list[tuple[str, str]]:
    return [(name, text) for (kind, name), (_, text) in pairwise(parts) if kind == "call"]


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("xml", {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}}),
        ("xml", {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a|b$"}}}),
        ("xml", {"type": "object", "properties": {"a>": {}}}),
        ("xml", {"type": "object", "anyOf": [{"required": ["a"]}]}),
        ("pythonic", {"type": "object", "properties": {"from": {}}}),
        ("pythonic", {"type": "object", "properties": {"a b": {}}}),
    ],
)
def test_what_a_format_cannot_write_is_refused_or_left_out(name: Any, schema: Any) -> None:
    form = FORMATS[name]
    with pytest.raises(Unwritable):
        call_grammar(form, {}, [Shape.of("f", schema, True)], parallel=True, required=True)
    loosened = Shape.of("f", schema, False).loosened
    grammar = call_grammar(form, {}, [loosened], parallel=True, required=True)
    assert problem_of(grammar) is None


@pytest.mark.parametrize("name", ["xml", "pythonic", "gemma"])
def test_definitions_are_not_written_for_any_number_of_members(name: Any) -> None:
    """Each member brings all of them: 30 kB would make 5 MB, and more 200, while others wait."""
    parameters = {
        "properties": {f"p{number}": {} for number in range(200)},
        "$defs": {f"d{number}": {"const": "x" * 100} for number in range(200)},
    }
    shape = Shape.of("find", parameters, strict=False)
    with pytest.raises(Unwritable, match="too long"):
        call_grammar(FORMATS[name], {}, [shape], parallel=True, required=True)
    held = call_grammar(FORMATS[name], {}, [shape.loosened], parallel=True, required=True)
    assert len(held.source) < MAX_GRAMMAR_BYTES
