"""Errors help: what was meant is said where it is near."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.app.conftest import MODEL, World

SAID = [{"role": "user", "content": "hello"}]


async def refused(world: World, path: str, **fields: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as client:
        answer = await client.post(path, json={"model": MODEL, **fields})
    assert answer.is_client_error
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "/v1/responses",
            {"input": "x", "max_tokens": 5},
            "Unknown parameter: 'max_tokens'; here it is 'max_output_tokens'.",
        ),
        (
            "/v1/responses",
            {"messages": SAID},
            "Missing required parameter: 'input', which 'messages' is called here.",
        ),
        (
            "/v1/chat/completions",
            {"input": "x"},
            "Missing required parameter: 'messages', which 'input' is called here.",
        ),
        (
            "/v1/chat/completions",
            {"messages": SAID, "max_output_tokens": 5},
            "Unknown parameter: 'max_output_tokens'; here it is 'max_completion_tokens'.",
        ),
        (
            "/v1/messages",
            {"messages": SAID, "max_tokens": 5, "stop": "x"},
            "stop: Unknown parameter: 'stop'; here it is 'stop_sequences'.",
        ),
        (
            "/v1/responses",
            {"input": "x", "tools": [{"type": "web_search"}]},
            "Invalid value for 'tools[0]': only tools of type function and custom are served, and "
            "not 'web_search'",
        ),
        (
            "/v1/responses",
            {"input": "x", "include": ["web_search_call.results"]},
            "'include[0]' is not supported here.",
        ),
        (
            "/v1/chat/completions",
            {"messages": SAID, "audio": {"voice": "x"}},
            "'audio' is not supported here.",
        ),
        (
            "/chat/completions",
            {},
            "There is nothing at '/chat/completions': it is at '/v1/chat/completions'.",
        ),
        ("/v1/v1/messages", {}, "There is nothing at '/v1/v1/messages': it is at '/v1/messages'."),
        ("/v2/messages", {}, "There is nothing at '/v2/messages'."),
    ],
)
async def test_what_was_meant_is_said(
    world: World, path: str, fields: dict[str, Any], message: str
) -> None:
    found = (await refused(world, path, **fields))["message"]
    assert message.removeprefix("stop: ") in found


@pytest.mark.parametrize("word", ["auto", "none", "required"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_choice_in_an_object_is_that_in_a_word(world: World, path: str, word: str) -> None:
    named = {"name": "see", "parameters": {"type": "object"}}
    is_chat = path.endswith("completions")
    tool = {"type": "function", **({"function": named} if is_chat else named)}
    body = {"model": MODEL, "tools": [tool], "messages" if is_chat else "input": SAID}
    asked = []
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as client:
        for choice in (word, {"type": word}):
            answer = await client.post(path, json={**body, "tool_choice": choice})
            assert answer.is_success, answer.text
            last = world.engine.requests[-1]
            asked.append((last.prompt, last.grammar))
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            {"type": "string", "pattern": "("},
            "pattern: it is no regular expression: unclosed group",
        ),
        (
            {"properties": {"a": {"items": {"pattern": "[z-a]"}}}},
            "properties.a.items.pattern: it is no regular expression: invalid character class "
            "range, the start must be <= the end",
        ),
        (
            {"$defs": {"b": {"$dynamicRef": "#"}}, "properties": {"a": {"$ref": "#/$defs/b"}}},
            "$defs.b: '$dynamicRef' is not supported here",
        ),
        ({"anyOf": [{"type": "null"}, {"type": "objekt"}]}, "anyOf[1]: there is no 'type' objekt"),
    ],
)
async def test_a_bad_schema_is_told_where_and_why(
    world: World, schema: dict[str, Any], problem: str
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    error = await refused(world, "/v1/chat/completions", messages=SAID, response_format=form)
    assert problem in error["message"]


async def test_a_bad_schema_of_a_strict_function_is_told_where_and_why(world: World) -> None:
    parameters = {"type": "object", "properties": {"a": {"not": {"type": "integer"}}}}
    function = {"name": "f", "parameters": parameters, "strict": True}
    tools = [{"type": "function", "function": function}]
    error = await refused(world, "/v1/chat/completions", messages=SAID, tools=tools)
    assert error["param"] == "tools[0].function.parameters"
    assert "properties.a: 'not' of the type 'integer' is not supported here" in error["message"]
