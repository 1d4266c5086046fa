"""Requests that have answers held to calls, in both APIs: what they ask, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.grammar.vocabulary import Vocabulary
from tests.app.conftest import MODEL, World
from tests.app.generation.walks import vocabulary_of, walk

DAY = {
    "type": "object",
    "properties": {"day": {"enum": ["today", "tomorrow"]}, "at": {"type": "boolean"}},
    "required": ["day", "at"],
}
ODD = {"type": "object", "properties": {"a": {"not": {"type": "integer"}}}}
ASKED: Any = [{"role": "user", "content": "How will it be?"}]


def function(name: str, schema: Any = DAY, **fields: Any) -> dict[str, Any]:
    return {"name": name, "parameters": schema, **fields}


def chat_tools(*functions: dict[str, Any]) -> Any:
    return [{"type": "function", "function": one} for one in functions]


def chat_choice(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


FREE = chat_tools(function("weather"), function("now", None))
STRICT = chat_tools(function("weather", strict=True), function("now", None))


async def complete(world: World, **fields: Any) -> Any:
    arguments: Any = {"model": MODEL, "messages": ASKED, "tools": FREE, **fields}
    return (await world.client().chat.completions.create(**arguments)).choices[0]


@pytest.fixture
def vocabulary(world: World, tmp_path: Path) -> Vocabulary:
    return vocabulary_of(world.engine.tokenizer, tmp_path)  # type: ignore[arg-type]


async def drawn(world: World, vocabulary: Vocabulary, seed: int, **fields: Any) -> Any:
    """A choice whose text is one that the grammar of such a request allows."""
    await complete(world, **fields)
    grammar = world.engine.requests[-1].grammar
    assert grammar is not None
    tokenizer: Any = world.engine.tokenizer
    world.engine.answer = tokenizer.decode(walk(grammar, tokenizer, vocabulary, seed))
    return await complete(world, **fields)


async def test_required_answers_are_calls(world: World, vocabulary: Vocabulary) -> None:
    for seed in range(3):
        choice = await drawn(world, vocabulary, seed, tool_choice="required")
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        for call in choice.message.tool_calls:
            arguments = json.loads(call.function.arguments)
            keys = {"day", "at"} if call.function.name == "weather" else set()
            assert arguments.keys() == keys


async def test_one_function_is_called_once(world: World, vocabulary: Vocabulary) -> None:
    for seed in range(3):
        choice = await drawn(world, vocabulary, seed, tool_choice=chat_choice("weather"))
        [call] = choice.message.tool_calls
        assert call.function.name == "weather"


async def test_of_allowed_functions_one_is_called(world: World, vocabulary: Vocabulary) -> None:
    allowed = {"mode": "required", "tools": [chat_choice("now")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = await drawn(world, vocabulary, 1, tool_choice=choice, parallel_tool_calls=False)
    [call] = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("now", "{}")


async def test_the_responses_api_asks_for_the_same(world: World) -> None:
    await complete(world, tool_choice="required")
    expected = world.engine.requests[-1].grammar
    tools: Any = [{"type": "function", **one["function"]} for one in FREE]
    client = world.client()
    response = await client.responses.create(
        model=MODEL, input="x", tools=tools, tool_choice="required"
    )
    assert world.engine.requests[-1].grammar == expected
    assert response.tool_choice == "required"
    named: Any = {"type": "function", "name": "now"}
    await client.responses.create(model=MODEL, input="x", tools=tools, tool_choice=named)
    await complete(world, tool_choice=chat_choice("now"))
    assert world.engine.requests[-1].grammar == world.engine.requests[-2].grammar


async def test_a_free_answer_is_held_only_where_a_function_is_strict(
    world: World, vocabulary: Vocabulary
) -> None:
    await complete(world)
    assert world.engine.requests[-1].grammar is None
    await complete(world, tools=STRICT, tool_choice="none")
    assert world.engine.requests[-1].grammar is None
    choice = await drawn(world, vocabulary, 1, tools=STRICT)
    assert choice.message.content or choice.message.tool_calls


async def test_an_answer_with_a_format_is_that_or_calls(
    world: World, vocabulary: Vocabulary
) -> None:
    schema = {"name": "n", "schema": {"type": "object", "properties": {"x": {"type": "boolean"}}}}
    form = {"type": "json_schema", "json_schema": schema}
    kinds = set()
    for seed in range(8):
        choice = await drawn(world, vocabulary, seed, response_format=form)
        kinds.add(choice.finish_reason)
        if choice.message.content:
            assert isinstance(json.loads(choice.message.content), dict)
    assert kinds == {"stop", "tool_calls"}
    required = await drawn(world, vocabulary, 0, response_format=form, tool_choice="required")
    assert required.finish_reason == "tool_calls"


async def test_what_cannot_be_held_of_a_function_that_is_not_strict_is_left_out(
    world: World, vocabulary: Vocabulary
) -> None:
    tools = chat_tools(function("odd", ODD), function("weather"))
    choice = await drawn(world, vocabulary, 2, tools=tools, tool_choice="required")
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "keyword",
    [
        {"pattern": "(a"},
        {"pattern": "^([a-z]{1,50}){1,50}$"},
        {"maxLength": 2**40},
        {"type": "integer", "minimum": 2**70},
        {"type": "integer", "maximum": 2**63 - 1, "minimum": -(2**63) + 1},
        {"type": "integer", "multipleOf": 2**64},
    ],
)
async def test_of_what_cannot_be_held_the_keyword_alone_is_left_out(
    world: World, keyword: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"} | keyword, "b": DAY}}
    tools = chat_tools(function("f", schema), function("weather"))
    await complete(world, tools=tools, tool_choice="required")
    grammar = world.engine.requests[-1].grammar
    assert grammar is not None
    kind = keyword.get("type", "string")
    assert f'"a":{{"type":"{kind}"}},"b":{{"type":"object","properties":{{"day"' in grammar.source
    strict = chat_tools(function("f", schema, strict=True), function("weather"))
    if "50" in keyword.get("pattern", ""):
        return  # it turns out to cost too much while it runs
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, tools=strict, tool_choice="required")
    assert refused.value.param == "tools[0].function.parameters"


async def test_functions_that_are_not_strict_are_held_to_less_where_all_is_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.validation.MAX_GRAMMAR_BYTES", 1200)
    long = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x" * 800]}}}
    tools = chat_tools(function("long", long), function("weather", strict=True))
    await complete(world, tools=tools, tool_choice="required")
    grammar = world.engine.requests[-1].grammar
    assert grammar is not None
    assert '"enum":["today","tomorrow"]' in grammar.source
    assert '"a":{"type":"string"}' in grammar.source
    monkeypatch.setattr("engine.validation.MAX_GRAMMAR_BYTES", 500)
    many = chat_tools(*(function(f"f{index}", strict=True) for index in range(3)))
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, tools=many)
    assert refused.value.param == "tools"


async def test_what_is_too_long_for_certain_is_not_even_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    monkeypatch.setattr("app.request.constraint.problem_of", looked.append)
    monkeypatch.setattr("app.generation.answer_grammar.MAX_GRAMMAR_BYTES", 300)
    free = chat_tools(*(function(f"f{index}") for index in range(3)))
    await complete(world, tools=free, tool_choice="required")
    assert len(looked) == 1
    assert "tomorrow" not in looked[0].source
    strict = chat_tools(*(function(f"f{index}", strict=True) for index in range(3)))
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, tools=strict)
    assert refused.value.param == "tools"
    assert len(looked) == 1


async def test_a_request_has_few_functions_looked_at_that_cannot_be_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def problem_of(grammar: Any) -> str | None:
        looked.append(grammar.source)
        return "no" if '"not"' in grammar.source else None

    monkeypatch.setattr("app.request.constraint.problem_of", problem_of)
    monkeypatch.setattr("app.generation.answer_grammar._MOST_LOOSENED", 3)
    odd = chat_tools(*(function(f"f{index}", ODD) for index in range(5)))
    await complete(world, tools=odd, tool_choice="required")
    assert len(looked) == 1 + 3 + 1
    assert '"not"' not in looked[-1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": chat_tools(function("f"), function("g", ODD, strict=True))}, "tools[1]"),
        (
            {
                "tools": chat_tools(function("f"), function("g", ODD, strict=True)),
                "tool_choice": "required",
            },
            "tools[1]",
        ),
        ({"tool_choice": "required", "extra_body": {"num_beams": 2}}, "tool_choice"),
        ({"tools": STRICT, "extra_body": {"num_beams": 2}}, "tools[0]"),
        ({"tool_choice": "required", "extra_body": {"ignore_eos": True}}, "ignore_eos"),
        ({"tools": STRICT, "extra_body": {"min_tokens": 3}}, "min_tokens"),
        (
            {
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
                "extra_body": {"structured_outputs": {"regex": "("}},
            },
            "structured_outputs",
        ),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    world: World, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, **fields)
    expected = f"{param}.function.parameters" if param == "tools[1]" else param
    assert refused.value.param == expected
    assert not world.engine.requests


async def test_a_model_without_bytes_cannot_be_made_to_call(world: World) -> None:
    world.engine.has_grammars = False
    asked: list[tuple[dict[str, Any], str]] = [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": STRICT}, "tools[0]"),
    ]
    for fields, param in asked:
        with pytest.raises(openai.BadRequestError) as refused:
            await complete(world, **fields)
        assert (refused.value.param, refused.value.code) == (param, "unsupported_value")
    await complete(world)
