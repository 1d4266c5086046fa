"""What a request may ask of the prompt cache, on the engine's own scheduler and block pool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import MODEL, World
from tests.app.pooled_engine import PooledEngine
from tests.app.responses.test_responses_ws import socket

BOOK = "It was the best of times, it was the worst of times, it was the age of wisdom. "
MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
EXPLICIT: Any = {"mode": "explicit"}


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()
    for core in engine.cores:
        core.scheduler.check()


def user(*texts: str) -> Any:
    """A user's message, with a breakpoint behind all of its parts but the last."""
    parts: list[Any] = [{"type": "input_text", "text": text, **MARK} for text in texts[:-1]]
    return {"role": "user", "content": [*parts, {"type": "input_text", "text": texts[-1]}]}


async def respond(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "input": "hello", "max_output_tokens": 4, **fields}
    return await world.client().responses.create(**arguments)


def counts(response: Any) -> tuple[int, int]:
    """Tokens found in the cache, and tokens that are new there."""
    details = response.usage.input_tokens_details
    return details.cached_tokens, details.cache_write_tokens


def marked(world: World) -> int:
    """Tokens before the breakpoint of a first message that begins with `BOOK`."""
    return len(world.engine.tokenizer(f"<|im_start|>user\n{BOOK}")["input_ids"])


async def test_an_explicit_request_keeps_what_lies_before_its_breakpoint_and_no_more(
    world: World,
) -> None:
    first = await respond(world, input=[user(BOOK, "who?")], prompt_cache_options=EXPLICIT)
    prefix = marked(world)
    assert prefix % 16, "the breakpoint lies within a block"
    assert counts(first) == (0, prefix)
    again = await respond(world, input=[user(BOOK, "who?")], prompt_cache_options=EXPLICIT)
    assert counts(again) == (prefix, 0)
    other = await respond(world, input=[user(BOOK, "where?")])
    assert counts(other)[0] == prefix
    assert again.prompt_cache_options.mode == "explicit"
    assert again.prompt_cache_options.ttl == "30m"


async def test_an_explicit_request_without_breakpoints_neither_finds_nor_leaves_anything(
    world: World,
) -> None:
    asked: Any = {"input": BOOK}
    assert counts(await respond(world, **asked, prompt_cache_options=EXPLICIT)) == (0, 0)
    found, written = counts(await respond(world, **asked))
    assert found == 0 < written
    assert counts(await respond(world, **asked, prompt_cache_options=EXPLICIT)) == (0, 0)
    assert counts(await respond(world, **asked))[0] > 0


async def test_a_later_turn_has_the_breakpoints_of_the_earlier_ones(world: World) -> None:
    first = await respond(world, input=[user(BOOK, "who?")], prompt_cache_options=EXPLICIT)
    prefix = marked(world)
    second = await respond(
        world, previous_response_id=first.id, input="more", prompt_cache_options=EXPLICIT
    )
    assert counts(second) == (prefix, 0)
    third = await respond(
        world,
        previous_response_id=second.id,
        input=[user(BOOK, "and?")],
        prompt_cache_options=EXPLICIT,
    )
    found, written = counts(third)
    assert (found, written > prefix) == (prefix, True)


async def test_states_are_to_stay_at_the_latest_four_ends_of_a_conversation(world: World) -> None:
    requests = world.engine.requests
    first = await respond(world, input=[user(BOOK, "who?", "when?")])
    *earlier, said = requests[-1].cache.ends
    assert len(earlier) == 2
    assert earlier[0] == marked(world) < earlier[1] < said < len(requests[-1].prompt)
    await respond(world, previous_response_id=first.id, input=[user("and", "then?")])
    *before, last, _ = requests[-1].cache.ends
    assert before == earlier
    assert last > len(requests[0].prompt)
    await respond(
        world,
        previous_response_id=first.id,
        input=[user("a", "b", "c", "d")],
        prompt_cache_options=EXPLICIT,
    )
    asked = requests[-1].cache
    assert asked.ends[0] == earlier[1], "none is implicit, and the first one has gone"
    assert len(asked.ends) == 4
    assert asked.up_to == asked.ends[-1]


async def test_a_conversation_keeps_its_breakpoints(world: World) -> None:
    made = await world.client().conversations.create(items=[user(BOOK, "zero")])
    fields: Any = {"conversation": made.id, "prompt_cache_options": EXPLICIT}
    assert counts(await respond(world, **fields)) == (0, marked(world))
    assert counts(await respond(world, **fields)) == (marked(world), 0)


async def test_a_result_of_a_call_may_be_marked(world: World) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
    output: Any = [{"type": "input_text", "text": BOOK, **MARK}]
    result = {"type": "function_call_output", "call_id": "c", "output": output}
    asked = {"input": [user("read"), call, result], "prompt_cache_options": EXPLICIT}
    found, written = counts(await respond(world, **asked))
    assert found == 0
    assert len(world.engine.requests[-1].prompt) > written > len(BOOK)


async def test_chat_completions_have_breakpoints_too(world: World) -> None:
    part = {"type": "text", "text": BOOK, **MARK}
    messages: Any = [{"role": "user", "content": [part, {"type": "text", "text": "who?"}]}]
    for found in (0, 1):
        completion = await world.client().chat.completions.create(
            model=MODEL, messages=messages, max_tokens=4, prompt_cache_options={"mode": "explicit"}
        )
        assert completion.usage is not None
        details = completion.usage.prompt_tokens_details
        assert details is not None
        counted = details.cached_tokens, details.cache_write_tokens
        assert counted == (found * marked(world), (1 - found) * marked(world))


HOURS = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 0),
        ({"prompt_cache_options": {}}, 1800),
        ({"prompt_cache_options": {"ttl": "12h"}}, 43_200),
        ({"input": [user("a", "b")]}, 1800),
        ({"prompt_cache_retention": "in_memory"}, 0),
        ({"prompt_cache_retention": "24h"}, 86_400),
        ({"prompt_cache_retention": "in_memory", "prompt_cache_options": {"ttl": "30m"}}, 1800),
    ],
)
async def test_a_lifetime_is_a_lease(world: World, fields: Any, seconds: float) -> None:
    await respond(world, **fields)
    assert world.engine.requests[-1].cache.lease_s == seconds


async def test_the_longest_of_the_latest_four_breakpoints_counts(world: World) -> None:
    late: Any = user("a", "b", "c", "d")
    late["content"][0] |= HOURS
    await respond(world, input=[late], prompt_cache_options=EXPLICIT)
    assert world.engine.requests[-1].cache.lease_s == 43_200
    late["content"].append({"type": "input_text", "text": "e", **MARK})
    await respond(world, input=[late], prompt_cache_options=EXPLICIT)
    assert world.engine.requests[-1].cache.lease_s == 43_200
    # An implicit one takes the place of the earliest.
    await respond(world, input=[late])
    assert world.engine.requests[-1].cache.lease_s == 1800


async def test_no_tenant_leases_for_longer_than_it_may(world: World) -> None:
    await world.limit("acme", lease_seconds=60)
    response = await respond(world, prompt_cache_options={"ttl": "12h"})
    assert world.engine.requests[-1].cache.lease_s == 60
    assert response.prompt_cache_options.ttl == "12h"
    assert response.prompt_cache_options.lease_seconds == 60


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_options": {"mode": "some"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        (
            {
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {}}
                        ],
                    }
                ]
            },
            "input[0].content[0].prompt_cache_breakpoint.mode",
        ),
    ],
)
async def test_what_is_none_is_refused_by_name(world: World, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, **fields)
    assert refused.value.param == param


async def test_a_socket_has_the_same_fields(world: World) -> None:
    async with socket(world) as raw:
        for found in (0, 1):
            await raw.create(
                [user(BOOK, "who?")], max_output_tokens=4, prompt_cache_options=EXPLICIT
            )
            response = (await raw.turn())[-1]["response"]
            details = response["usage"]["input_tokens_details"]
            assert details["cached_tokens"] == found * marked(world)
            assert response["prompt_cache_options"]["mode"] == "explicit"
