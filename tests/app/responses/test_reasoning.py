"""What a model reasons over the Responses API: items of their own, left out of later prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tenants.storage.embedded import EmbeddedStore
from tests.app.background.restarts import another, http_of
from tests.app.conftest import CHATML, MODEL, World, eventually
from tests.app.reasoning import KEPT, OPENED, SWITCHED, reasoning_world
from tests.app.responses.test_responses_ws import socket
from tests.app.responses.test_resume import rest_by_sse
from tests.app.responses.test_tools import CALL, TOOL, result_of

ANSWER = "<think>\nIs it?\n</think>\n\nIt is."
START, END = "<|im_start|>", "<|im_end|>\n"


@pytest.fixture
async def world(store_server: EmbeddedStore) -> AsyncIterator[World]:
    async with reasoning_world(SWITCHED, store_server.url) as world:
        world.engine.answer = ANSWER
        yield world


async def respond(world: World, **fields: Any) -> Any:
    return await world.client().responses.create(**{"model": MODEL, "input": "x", **fields})


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


async def test_reasoning_is_an_item_before_the_message(world: World) -> None:
    response = await respond(world)
    reasoning, message = response.output
    assert (reasoning.type, reasoning.status, reasoning.summary) == ("reasoning", "completed", [])
    assert [(one.type, one.text) for one in reasoning.content] == [("reasoning_text", "Is it?")]
    assert reasoning.id.startswith("rs_")
    assert (message.type, response.output_text) == ("message", "It is.")
    tokens = len(ANSWER) - len("It is.")
    assert response.usage.output_tokens_details.reasoning_tokens == tokens
    assert await world.client().responses.retrieve(response.id) == response


async def test_a_stream_tells_it_from_its_beginning_to_its_end(world: World) -> None:
    async with world.client().responses.stream(model=MODEL, input="x") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = [event.type.removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_text.delta", "output_text.done", "completed",
    ]  # fmt: skip
    told = [event for event in events if "reasoning_text" in event.type]
    assert "".join(event.delta for event in told[:-1]) == told[-1].text == "Is it?"
    assert {event.output_index for event in told} == {0}
    assert {event.item_id for event in told} == {final.output[0].id}
    parts = [event.part.type for event in events if event.type == "response.content_part.added"]
    assert parts == ["reasoning_text", "output_text"]
    assert final.output[0].content[0].text == "Is it?"
    assert final.output_text == "It is."


async def test_a_socket_tells_the_same_events(world: World) -> None:
    async with socket(world) as raw:
        await raw.create("x")
        events = await raw.turn()
    deltas = [one["delta"] for one in events if one["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == "Is it?"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


async def test_an_answer_that_begins_inside_has_the_closing_marker_alone(
    store_server: EmbeddedStore,
) -> None:
    async with reasoning_world(OPENED, store_server.url) as world:
        world.engine.answer = "Is it?\n</think>\n\nIt is."
        response = await respond(world)
        assert prompt(world).endswith("assistant\n<think>\n")
        assert [item.type for item in response.output] == ["reasoning", "message"]
        assert response.output_text == "It is."
        await respond(world, previous_response_id=response.id)
        assert prompt(world).endswith(
            f"x{END}{START}assistant\nIt is.{END}{START}user\nx{END}{START}assistant\n<think>\n"
        )


@pytest.mark.parametrize("length", [len("<think>\nIs"), 3])
async def test_a_budget_that_ends_inside_leaves_it_incomplete(world: World, length: int) -> None:
    response = await respond(world, max_output_tokens=length)
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    [item] = response.output
    assert item.status == "incomplete"
    assert item.type == ("reasoning" if length > 3 else "message")


async def test_what_is_reasoned_has_no_log_probabilities_and_no_stop_strings(world: World) -> None:
    response = await respond(
        world, include=["message.output_text.logprobs"], extra_body={"stop": ["Is", "\n", "."]}
    )
    assert [item.type for item in response.output] == ["reasoning", "message"]
    [part] = response.output[1].content
    assert "".join(one.token for one in part.logprobs) == part.text == "It is"


async def test_calls_follow_what_is_reasoned(world: World) -> None:
    world.engine.answer = f"<think>{CALL}</think>\n\nOne moment.\n{CALL}"
    response = await respond(world, tools=[TOOL])
    reasoning, message, call = response.output
    assert reasoning.content[0].text == CALL
    assert (message.content[0].text, call.name) == ("One moment.", "get_weather")


async def test_later_prompts_leave_it_out_as_the_template_does(world: World) -> None:
    first = await respond(world, instructions="Be brief.")
    second = await respond(world, previous_response_id=first.id)
    expected = (
        f"{START}system\nBe brief.{END}{START}user\nx{END}{START}assistant\nIt is.{END}"
        f"{START}user\nx{END}{START}assistant\n"
    )
    assert prompt(world) == expected
    shared = first.usage.input_tokens // 16 * 16
    assert second.usage.input_tokens_details.cached_tokens == shared > 0
    await respond(world, previous_response_id=second.id)
    assert prompt(world) == f"{expected}It is.{END}{START}user\nx{END}{START}assistant\n"


async def test_what_was_reasoned_before_a_call_stays_until_the_next_question(world: World) -> None:
    world.engine.answer = f"<think>\nIs it?\n</think>\n\n{CALL}"
    first = await respond(world, tools=[TOOL])
    world.engine.answer = ANSWER
    second = await respond(
        world, input=[result_of(first.output[-1])], previous_response_id=first.id
    )
    assert f"<think>\nIs it?\n</think>\n\n{CALL}{END}{START}tool" in prompt(world)
    await respond(world, previous_response_id=second.id)
    assert "<think>" not in prompt(world)
    assert prompt(world).endswith(
        f"{START}assistant\n{CALL}{END}{START}tool\nsunny{END}{START}assistant\nIt is.{END}"
        f"{START}user\nx{END}{START}assistant\n"
    )


async def test_a_template_that_repeats_it_shares_all_blocks(store_server: EmbeddedStore) -> None:
    async with reasoning_world(KEPT, store_server.url) as world:
        world.engine.answer = ANSWER
        first = await respond(world)
        second = await respond(world, previous_response_id=first.id)
        assert f"{ANSWER}{END}{START}user" in prompt(world)
        before = first.usage.total_tokens
        assert second.usage.input_tokens_details.cached_tokens >= before - 16


@pytest.mark.parametrize(("template", "is_said"), [(SWITCHED, False), (KEPT, True)])
async def test_items_that_come_back_go_to_the_template(
    template: str, is_said: bool, store_server: EmbeddedStore
) -> None:
    async with reasoning_world(template, store_server.url) as world:
        world.engine.answer = ANSWER
        response = await respond(world)
        asked: Any = {"role": "user", "content": "x"}
        items = [item.model_dump(exclude_none=True) for item in response.output]
        await respond(world, input=[asked, *items, asked])
        assert ("<think>\nIs it?\n</think>\n\nIt is." in prompt(world)) is is_said
        references = [{"type": "item_reference", "id": item.id} for item in response.output]
        by_items = prompt(world)
        await respond(world, input=[asked, *references, asked])
        assert prompt(world) == by_items


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", None])
async def test_an_effort_switches_reasoning(world: World, effort: Any) -> None:
    world.engine.answer = "It is." if effort in ("none", "minimal") else ANSWER
    reasoning: Any = {"effort": effort, "summary": "auto"}
    response = await respond(world, reasoning=reasoning)
    is_off = effort in ("none", "minimal")
    assert prompt(world).endswith("<think>\n\n</think>\n\n") is is_off
    assert response.output_text == "It is."
    assert (response.reasoning.effort, response.reasoning.summary) == (effort, None)
    await respond(world, previous_response_id=response.id)
    assert "<think>" not in prompt(world)


async def test_a_stream_can_be_resumed_inside_of_it(world: World) -> None:
    world.engine.hold_after = len("<think>\nIs")
    async with socket(world) as raw:
        await raw.create("x")
        seen = [await raw.receive() for _ in range(5)]
        raw.connection.transport.abort()
    async with httpx.AsyncClient(
        base_url=world.base_url, headers=world.headers(), trust_env=False, timeout=20
    ) as http:
        rest = asyncio.create_task(rest_by_sse(http, seen[0]["response"]["id"], 4))
        await eventually(lambda: bool(world.engine.holding))
        world.engine.release()
        events = [*seen, *await rest]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [one["delta"] for one in events if one["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == "Is it?"


async def test_what_was_reasoned_comes_back_encrypted(store_server: EmbeddedStore) -> None:
    async with reasoning_world(KEPT, store_server.url) as world:
        world.engine.answer = ANSWER
        include = ["reasoning.encrypted_content"]
        async with world.client().responses.stream(
            model=MODEL, input="x", store=False, extra_body={"include": include}
        ) as stream:
            done = [event.item async for event in stream if "item.done" in event.type]
            response = await stream.get_final_response()
        reasoning, message = [item.model_dump(exclude_none=True) for item in response.output]
        assert reasoning["encrypted_content"] == done[0].encrypted_content
        del reasoning["content"]
        asked: Any = {"role": "user", "content": "x"}
        await respond(world, input=[asked, reasoning, message, asked])
        assert "<think>\nIs it?\n</think>\n\nIt is." in prompt(world)
        assert (await respond(world)).output[0].encrypted_content is None


async def test_a_restart_goes_on_inside_of_it(world: World, store_server: EmbeddedStore) -> None:
    body = {"model": MODEL, "input": "x", "include": ["reasoning.encrypted_content"]}
    interrupted = []
    async with http_of(world) as http:
        for count in range(1, len(ANSWER) + 1, 3):
            world.engine.hold_after = count
            reading = asyncio.create_task(http.post("/v1/responses", json=body | {"stream": True}))
            await eventually(lambda: bool(world.engine.holding))
            interrupted.append(world.engine.requests[-1].request_id)
            await world.app.state.service.responses.suspend()
            await reading
    async with another(world, store_server) as after, http_of(after) as http:
        for response_id in interrupted:
            events = await rest_by_sse(http, response_id)
            output = events[-1]["response"]["output"]
            assert [item["type"] for item in output] == ["reasoning", "message"]
            assert [item["content"][0]["text"] for item in output] == ["Is it?", "It is."]
            assert output[0]["encrypted_content"]
            deltas = [event["delta"] for event in events if event["type"].endswith("delta")]
            assert "".join(deltas) == "Is it?It is."


async def test_a_format_holds_behind_what_is_reasoned(world: World) -> None:
    world.engine.answer = '<think>\nIs it?\n</think>\n\n{"is": true}'
    response = await respond(world, text={"format": {"type": "json_object"}})
    assert response.output_text == '{"is": true}'
    grammar = world.engine.requests[-1].grammar
    assert grammar is not None
    assert '"</think>"' in grammar.preamble


async def test_what_a_template_does_not_know_is_text(
    store_server: EmbeddedStore,
) -> None:
    plain = SWITCHED.replace("<think>", "").replace("</think>", "")
    async with reasoning_world(plain, store_server.url) as world:
        world.engine.answer = ANSWER
        response = await respond(world, reasoning={"effort": "high"})
        assert response.output_text == ANSWER
        assert response.usage.output_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(("template", "effort", "named"), [
    (SWITCHED, "high", ["reasoning.summary"]),
    (SWITCHED, "none", ["reasoning.summary"]),
    (CHATML, "high", ["reasoning.summary", "reasoning.effort"]),
    (CHATML, "none", ["reasoning.summary"]),
    (OPENED, "none", ["reasoning.summary", "reasoning.effort"]),
])  # fmt: skip
async def test_what_no_template_can_be_told_is_named(
    template: str, effort: str, named: list[str], store_server: EmbeddedStore
) -> None:
    async with reasoning_world(template, store_server.url) as world:
        reasoning = {"effort": effort, "summary": "auto"}
        async with socket(world) as raw:
            await raw.create("x", reasoning=reasoning)
            assert (await raw.turn())[0]["ignored_fields"] == named
        async with http_of(world) as http:
            body = {"model": MODEL, "input": "x", "reasoning": reasoning}
            answer = await http.post("/v1/responses", json=body)
            assert answer.headers["x-partywall-ignored-fields"] == ", ".join(named)
            chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
            answer = await http.post(
                "/v1/chat/completions", json={**chat, "reasoning_effort": effort}
            )
            told = answer.headers.get("x-partywall-ignored-fields")
            assert told == ("reasoning_effort" if "reasoning.effort" in named else None)
