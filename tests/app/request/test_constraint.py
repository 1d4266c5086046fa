"""Formats of both APIs become one grammar for the engine, or are refused by the field's name."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from app.request import constraint
from engine.api import OF_GRAMMAR, Grammar
from engine.grammar.gbnf import in_lark
from engine.grammar.source import JSON_OPTIONS
from engine.validation import MAX_DEFINITIONS, MAX_GRAMMAR_BYTES
from tests.app.conftest import MODEL, World

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "string"}, "a": {"type": "integer"}},
    "required": ["b", "a"],
    "additionalProperties": False,
}
OF_SCHEMA = Grammar(kind="json_schema", source=json.dumps(SCHEMA, separators=(",", ":")))
ANY_OBJECT = Grammar(kind="json_schema", source='{"type":"object"}')
LARK = 'start: "x" | "y"'
GBNF = 'root ::= "x" | "y"'
MANY_RULES = "start: a\n" + "a: A\n" * MAX_DEFINITIONS


class Person(BaseModel):
    name: str
    age: int


async def respond(world: World, **fields: Any) -> Any:
    return await world.client().responses.create(model=MODEL, input="hi", extra_body=fields)


async def complete(world: World, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": "hi"}]
    return await world.client().chat.completions.create(
        model=MODEL, messages=messages, extra_body=fields
    )


def asked(world: World) -> Grammar | None:
    return world.engine.requests[-1].grammar


SHARED: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, ANY_OBJECT),
    ({"type": "regex", "regex": "a+"}, Grammar(kind="regex", source="a+")),
    ({"type": "grammar", "grammar": LARK}, Grammar(kind="lark", source=LARK)),
    (
        {"type": "choice", "choice": ["yes", 'no "\n']},
        Grammar(kind="lark", source=r'start: "yes" | "no \"\n"'),
    ),
]


@pytest.mark.parametrize(
    ("asked_for", "expected"),
    [
        *SHARED,
        ({"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, OF_SCHEMA),
        ({"type": "json_schema", "name": "n", "schema": SCHEMA}, OF_SCHEMA),
    ],
)
async def test_a_response_is_held_to_its_format_and_repeats_it(
    world: World, asked_for: dict[str, Any], expected: Grammar | None
) -> None:
    response = await respond(world, text={"format": asked_for})
    assert asked(world) == expected
    sent = response.to_dict(warnings=False)["text"]["format"]
    assert {name: value for name, value in sent.items() if value is not None} == asked_for


@pytest.mark.parametrize(
    ("asked_for", "expected"),
    [
        *SHARED,
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, OF_SCHEMA),
    ],
)
async def test_so_is_a_chat_completion(
    world: World, asked_for: dict[str, Any], expected: Grammar | None
) -> None:
    await complete(world, response_format=asked_for, n=2)
    assert asked(world) == expected


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({"json": SCHEMA}, OF_SCHEMA),
        ({"json": json.dumps(SCHEMA, separators=(",", ":"))}, OF_SCHEMA),
        ({"json_object": True}, ANY_OBJECT),
        ({"regex": "a+", "json_object": False}, Grammar(kind="regex", source="a+")),
        ({"choice": ["x", "y"]}, Grammar(kind="lark", source=LARK)),
        ({"grammar": LARK}, Grammar(kind="lark", source=LARK)),
        ({"grammar": GBNF}, in_lark(Grammar(kind="lark", source=GBNF))),
    ],
)
async def test_vllms_words_mean_the_same(
    world: World, outputs: dict[str, Any], expected: Grammar
) -> None:
    await complete(world, structured_outputs=outputs)
    assert asked(world) == expected
    await respond(world, structured_outputs=outputs)
    assert asked(world) == expected


TAGS: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=go>", "schema": {"type": "object", "required": ["x"]}, "end": "</f>"},
        {"begin": "<f=no>", "end": "<|im_end|>"},
        {"begin": "<|im_start|>a", "schema": {"const": 1}, "end": ""},
    ],
    "triggers": ["<f=", "<|im_start|>"],
}


async def test_structural_tags_hold_what_begins_with_a_trigger(world: World) -> None:
    await complete(world, response_format=TAGS)
    grammar = asked(world)
    assert grammar is not None
    assert grammar.tokens == ()  # no client opens a turn
    body = rf'"a" %json {{"const":1, "x-guidance": {json.dumps(JSON_OPTIONS)}}}'
    assert f"body_1: {body}" in grammar.source
    assert 'trigger_1[lazy]: TEXT "<|im_start|>"' in grammar.source
    await respond(world, text={"format": TAGS})
    assert asked(world) == grammar
    for encoded in (TAGS, json.dumps(TAGS)):
        await complete(world, structured_outputs={"structural_tag": encoded})
        assert asked(world) == grammar


@pytest.mark.parametrize(
    "changed",
    [
        {"triggers": ["<g="]},
        {"triggers": ["<f=", "<|im_start|>", "<g="]},
        {"triggers": []},
        {"structures": []},
        {"format": {"type": "sequence"}},
    ],
)
async def test_structural_tags_that_mean_nothing_are_refused(world: World, changed: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, response_format=TAGS | changed)
    assert refused.value.param is not None
    assert refused.value.param.startswith("response_format")
    for encoded in ("{", json.dumps(TAGS | changed)):
        with pytest.raises(openai.BadRequestError) as refused:
            await complete(world, structured_outputs={"structural_tag": encoded})
        assert refused.value.param is not None
        assert refused.value.param.startswith("structured_outputs.structural_tag")


async def test_the_clients_own_helpers_send_schemas(world: World) -> None:
    world.engine.answer = '{"name": "Ada", "age": 36}'
    client = world.client()
    response = await client.responses.parse(model=MODEL, input="hi", text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36)
    messages: Any = [{"role": "user", "content": "hi"}]
    completion = await client.chat.completions.parse(
        model=MODEL, messages=messages, response_format=Person
    )
    assert completion.choices[0].message.parsed == Person(name="Ada", age=36)
    grammar = asked(world)
    assert grammar is not None
    assert json.loads(grammar.source)["required"] == ["name", "age"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": {"type": "regex", "regex": "(a"}}, "response_format"),
        ({"response_format": {"type": "grammar", "grammar": "x: y"}}, "response_format"),
        ({"response_format": {"type": "choice", "choice": []}}, "response_format.choice"),
        (
            {"response_format": {"type": "regex", "regex": "a" * (MAX_GRAMMAR_BYTES + 1)}},
            "response_format",
        ),
        ({"response_format": {"type": "grammar", "grammar": MANY_RULES}}, "response_format"),
        ({"response_format": {"type": "regex", "regex": "a"}, "num_beams": 2}, "response_format"),
        ({"response_format": {"type": "regex", "regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "regex", "regex": "a"}, "min_tokens": 3}, "min_tokens"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": "[" * 5000}}, "structured_outputs.json"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"grammar": "root ::= [a"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
    ],
)
async def test_what_cannot_hold_is_refused_by_name(
    world: World, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, **fields)
    assert refused.value.param == param
    assert not world.engine.requests


async def test_a_grammar_that_cannot_go_on_is_told_as_the_fields_fault(world: World) -> None:
    """No 500, which clients would send again."""
    world.engine.die_after, world.engine.death = 3, f"{OF_GRAMMAR} cannot go on: it is too large"
    with pytest.raises(openai.BadRequestError, match="it is too large") as refused:
        await complete(world, structured_outputs={"regex": "a+"})
    assert refused.value.param == "structured_outputs.regex"
    fields = {"text": {"format": {"type": "regex", "regex": "a+"}}}
    events = await world.client().responses.create(
        model=MODEL, input="hi", stream=True, extra_body=fields
    )
    last = [event async for event in events][-1]
    assert last.type == "response.failed"
    assert "'text.format': the grammar cannot go on" in last.response.error.message


async def test_neutral_values_ask_for_nothing(world: World) -> None:
    await complete(world, response_format=None, structured_outputs=None, num_beams=2, temperature=0)
    await complete(world, response_format={"type": "text"}, ignore_eos=True)
    assert asked(world) is None


async def test_a_model_without_bytes_has_no_formats(world: World) -> None:
    world.engine.has_grammars = False
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, text={"format": {"type": "json_object"}})
    assert refused.value.param == "text.format"
    assert refused.value.code == "unsupported_value"


async def test_a_grammar_is_looked_at_once_for_each_namespace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Grammar] = []
    monkeypatch.setattr(constraint, "problem_of", looked.append)
    regex = {"format": {"type": "regex", "regex": "a+"}}
    await respond(world, text=regex)
    await respond(world, text=regex)
    assert len(looked) == 1
    await respond(world, text=regex, safety_identifier="somebody")
    assert len(looked) == 2
    await respond(world, structured_outputs={"grammar": "a+"})
    assert [grammar.kind for grammar in looked] == ["regex", "regex", "lark"]
    grammars = world.app.state.service.generations.grammars
    monkeypatch.setattr(grammars._known, "_most", 1)
    await respond(world, text={"format": {"type": "regex", "regex": "b"}})
    await respond(world, text=regex)
    assert len(looked) == 5
