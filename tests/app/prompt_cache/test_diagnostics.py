"""Why a prompt was found in the cache, or was not: random requests, and mutations of them."""

from __future__ import annotations

import random
import string
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from transformers import PreTrainedTokenizerBase

from app.prompt.breakpoints import num_common
from app.prompt.conversation import Prompt
from app.prompt_cache.comparison import Comparison, compared
from app.prompt_cache.segments import segments_of
from app.transport.bounds import Bounds
from engine.api import EngineInfo, EngineRequest, TokenDelta
from tests.app.conftest import CHATML, MODEL, World, byte_tokenizer
from tests.app.pooled_engine import BLOCK_SIZE, PooledEngine
from tests.app.responses.test_responses_ws import socket

EFFORT_FIRST = (
    "{% if reasoning_effort %}{{ '<|im_start|>system\nEffort: ' + reasoning_effort + '\n' }}"
    "{% endif %}"
) + CHATML
Body = dict[str, Any]


class Engine(PooledEngine):
    """Another model's, where `other` is set, as far as the service can tell."""

    other = False

    @property
    def info(self) -> EngineInfo:
        info = msgspec.structs.replace(super().info, has_grammars=True)
        return msgspec.structs.replace(info, hash_extras=b"other") if self.other else info

    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        # There is no model to be held to a grammar.
        return super().generate(msgspec.structs.replace(request, grammar=None))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = EFFORT_FIRST
    return tokenizer


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[Engine]:
    engine = Engine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()
    for core in engine.cores:
        core.scheduler.check()


class Asker:
    """Asks random things, and keeps the prompts that came of them."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)

    def text(self, least: int = 20, most: int = 60) -> str:
        count = self.rng.randint(least, most)
        return "".join(self.rng.choices(string.ascii_lowercase + " ", k=count))

    def body(self) -> Body:
        """A request, whose conversation nobody has had before."""
        said = [{"role": "user", "content": self.text()}]
        for _ in range(self.rng.randint(0, 2)):
            said += [
                {"role": "assistant", "content": self.text()},
                {"role": "user", "content": self.text()},
            ]
        return {
            "instructions": self.text(40, 80),
            "input": said,
            "tools": [self.tool()],
            "reasoning": {"effort": "low"},
            "prompt_cache_key": self.text(4, 8),
            "safety_identifier": self.text(4, 8),
        }

    def tool(self) -> Body:
        name = "".join(self.rng.choices(string.ascii_lowercase, k=8))
        return {"type": "function", "name": name, "description": self.text()}

    async def ask(self, body: Body, beside: str | None = None, **options: Any) -> Body:
        """The response as JSON."""
        if beside is not None:
            options["comparison_response_id"] = beside
        if options:
            body = body | {"prompt_cache_options": options}
        client = self.world.client()
        body = {"model": MODEL, "max_output_tokens": 4} | body
        response = await client.responses.create(**body)
        return dict(response.model_dump())

    @property
    def prompt(self) -> list[int]:
        return list(self.world.engine.requests[-1].prompt)


def other(text: str) -> str:
    """The text with another character in it."""
    at = len(text) // 2
    return f"{text[:at]}{'x' if text[at] != 'x' else 'y'}{text[at + 1 :]}"


def with_other_input(body: Body, asker: Asker) -> Body:
    said = [dict(one) for one in body["input"]]
    one = asker.rng.choice(said)
    one["content"] = other(one["content"])
    return body | {"input": said}


def with_other_instructions(body: Body, _: Asker) -> Body:
    return body | {"instructions": other(body["instructions"])}


MISSES: dict[str, Any] = {
    "prompt_cache_key_changed": lambda body, asker: body | {"prompt_cache_key": asker.text(9, 9)},
    "tools_changed": lambda body, asker: body | {"tools": [asker.tool()]},
    "reasoning_effort_changed": lambda body, _: body | {"reasoning": {"effort": "high"}},
    "input_changed": with_other_input,
    "input_changed of instructions": with_other_instructions,
}
HARMLESS: dict[str, Any] = {
    "": lambda body, _: body,
    "text_format_changed": lambda body, _: body | {"text": {"format": {"type": "json_object"}}},
    "verbosity_changed": lambda body, _: body | {"text": {"verbosity": "low"}},
    "service_tier_changed": lambda body, _: body | {"service_tier": "flex"},
}
"""What no prompt here is made of: whoever changes it finds all the same."""


def count(few: int) -> Any:
    """So many mutations in `make test`, and fifty in all."""
    cases = [pytest.param(range(few), id="few")]
    cases.append(pytest.param(range(few, 50), id="fifty", marks=pytest.mark.exhaustive))
    return pytest.mark.parametrize("seeds", cases)


@count(2)
@pytest.mark.parametrize("kind", MISSES)
async def test_a_prompt_that_differs_is_a_miss_for_that_reason(
    world: World, kind: str, seeds: range
) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        before = asker.prompt
        second = await asker.ask(MISSES[kind](body, asker), first["id"])
        told = second["prompt_cache_diagnostics"]
        reason = kind.partition(" ")[0]
        assert (told["type"], told["reason"]) == ("cache_miss", reason)
        assert told["details"]["changed"] == [reason]
        if reason == "prompt_cache_key_changed":
            assert told["comparison_reusable_tokens"] is None
            assert told["cache_missed_tokens"] == len(asker.prompt)
        else:
            reusable = num_common(before, asker.prompt)
            assert told["comparison_reusable_tokens"] == reusable
            assert told["cache_missed_tokens"] == len(asker.prompt) - reusable
            found = second["usage"]["input_tokens_details"]["cached_tokens"]
            assert found >= reusable - BLOCK_SIZE
            assert "reason" not in told["details"]


@count(2)
@pytest.mark.parametrize("kind", HARMLESS)
async def test_what_no_prompt_is_made_of_changes_nothing(
    world: World, kind: str, seeds: range
) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        second = await asker.ask(HARMLESS[kind](body, asker), first["id"])
        told = second["prompt_cache_diagnostics"]
        assert told["type"] == "cache_hit"
        assert told["details"] == {"changed": [kind] if kind else []}


@count(2)
async def test_a_conversation_that_goes_on_is_a_hit(world: World, seeds: range) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        more = body | {"input": asker.text(), "previous_response_id": first["id"]}
        second = await asker.ask(more, mode="implicit")  # the previous response is compared with
        assert second["prompt_cache_diagnostics"]["type"] == "cache_hit"
        shorter = body | {"input": body["input"][:1]}
        third = await asker.ask(shorter, second["id"])
        assert third["prompt_cache_diagnostics"]["type"] == "cache_hit"


@count(2)
async def test_another_model_finds_nothing(world: World, engine: Engine, seeds: range) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        engine.other = True
        second = await asker.ask(with_other_input(body, asker), first["id"])
        engine.other = False
        told = second["prompt_cache_diagnostics"]
        assert (told["type"], told["reason"]) == ("cache_miss", "model_changed")
        assert told["comparison_reusable_tokens"] is None


@count(1)
async def test_a_context_that_is_summed_up_or_cut_is_compacted(world: World, seeds: range) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        summed = await world.client().responses.compact(model=MODEL, input=body["input"])
        items = [item.model_dump(exclude_none=True) for item in summed.output]
        more = body | {"input": [*items, {"role": "user", "content": asker.text()}]}
        told = (await asker.ask(more, first["id"]))["prompt_cache_diagnostics"]
        assert (told["type"], told["reason"]) == ("cache_miss", "context_compacted")
        assert told["details"]["changed"] == ["context_compacted"]


async def test_a_context_that_turns_are_left_out_of_is_compacted(world: World) -> None:
    asker = Asker(world, 0)
    await world.limit("acme", context_tokens=600)
    before: str | None = None
    for _ in range(3):
        body = {"input": asker.text(100, 100), "previous_response_id": before}
        before = (await asker.ask(body))["id"]
    body |= {"previous_response_id": before, "truncation": "auto", "input": asker.text(300, 300)}
    told = (await asker.ask(body, before))["prompt_cache_diagnostics"]
    assert (told["type"], told["reason"]) == ("cache_miss", "context_compacted")
    assert told["comparison_reusable_tokens"] > 100


@count(2)
async def test_another_end_user_is_told_so_and_nothing_of_tokens(
    world: World, seeds: range
) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        theirs = body | {"safety_identifier": asker.text(9, 9)}
        told = (await asker.ask(theirs, first["id"]))["prompt_cache_diagnostics"]
        assert told == {
            "type": "unavailable",
            "details": {"changed": [], "reason": "end_user_changed"},
        }


async def flooded(asker: Asker) -> Body:
    """The diagnostics of a prompt that another tenant's have taken the place of meanwhile."""
    body = asker.body()
    first = await asker.ask(body)
    for _ in range(2):  # more than the pool holds
        flood = {"model": MODEL, "input": asker.text(1300, 1300), "max_output_tokens": 4}
        await asker.world.client("umbra").responses.create(**flood)
    told = (await asker.ask(body, first["id"]))["prompt_cache_diagnostics"]
    assert (told["type"], told["details"]["reason"]) == ("unavailable", "evicted")
    return dict(told["details"])


@count(1)
async def test_what_was_evicted_is_told_with_its_reason(world: World, seeds: range) -> None:
    for seed in seeds:
        began = int(time.time())
        details = await flooded(Asker(world, seed))
        assert details["evicted_by"] == "pressure"
        assert began - 1 <= details["evicted_at"] <= time.time()


class TestLeases:
    """Where whoever says nothing has a lease, which is over soon."""

    @pytest.fixture
    def limits(self) -> Bounds:
        return Bounds(lease_seconds=1e-6)

    async def test_what_was_evicted_behind_its_lease_has_expired(self, world: World) -> None:
        assert (await flooded(Asker(world, 0)))["evicted_by"] == "expired"

    async def test_what_was_leased_beyond_the_limit_goes_for_that(self, world: World) -> None:
        await world.limit("acme", leased_blocks=0)
        assert (await flooded(Asker(world, 0)))["evicted_by"] == "own_quota"


async def test_a_cache_that_was_emptied_is_told(world: World, engine: Engine) -> None:
    asker = Asker(world, 0)
    body = asker.body()
    first = await asker.ask(body)
    await engine.clear()
    told = (await asker.ask(body, first["id"]))["prompt_cache_diagnostics"]
    assert told["details"]["reason"] == "evicted"
    assert told["details"]["evicted_by"] == "deleted"


async def test_a_prompt_that_others_share_since_is_told(world: World) -> None:
    asker = Asker(world, 0)
    body = asker.body() | {"reasoning": None}
    first = await asker.ask(body)
    await world.register("acme", "law", body["instructions"])
    second = await asker.ask(body, first["id"])
    told = second["prompt_cache_diagnostics"]
    assert told == {
        "type": "unavailable",
        "details": {"changed": [], "reason": "namespace_changed"},
    }


async def test_of_another_namespace_nothing_is_compared(world: World) -> None:
    asker = Asker(world, 0)
    first = await asker.ask(asker.body())
    turn = await world.app.state.service.history.load("acme", first["id"])
    theirs = {
        name: segments_of(
            world.tenants[name], world.engine.requests[-1], world.engine.info, 10, {"key": None}
        )
        for name in ("acme", "umbra")
    }
    found = compared(turn, theirs["acme"], Prompt(turn.ids), theirs["umbra"], world.engine.info)
    assert found == Comparison(changed=[], own="namespace_changed")
    found = compared(turn, theirs["acme"], Prompt(turn.ids), theirs["acme"], world.engine.info)
    assert found.own is None


async def test_a_prefix_that_fills_no_block_is_told(world: World) -> None:
    asker = Asker(world, 0)
    first = await asker.ask({"input": "a"})
    second = await asker.ask({"input": "b"}, first["id"])
    told = second["prompt_cache_diagnostics"]
    assert told["reason"] == "input_changed"
    found = second["usage"]["input_tokens_details"]["cached_tokens"]
    reason = None if found else "prefix_shorter_than_block"
    assert told["details"].get("reason") == reason


async def test_what_was_not_kept_or_not_asked_for_is_told(world: World) -> None:
    asker = Asker(world, 0)
    body = asker.body()
    first = await asker.ask(body, mode="explicit")
    told = (await asker.ask(body, first["id"]))["prompt_cache_diagnostics"]
    assert (told["type"], told["details"]["reason"]) == ("unavailable", "not_kept")
    told = (await asker.ask(body, first["id"], mode="explicit"))["prompt_cache_diagnostics"]
    assert (told["type"], told["details"]["reason"]) == ("unavailable", "not_asked")


async def test_a_response_that_is_not_the_tenants_is_not_found(world: World) -> None:
    asker = Asker(world, 0)
    body = asker.body()
    theirs = await world.client("umbra").responses.create(
        model=MODEL, input="hello", max_output_tokens=4
    )
    for name in (theirs.id, "resp_" + "0" * 32, "anything"):
        told = (await asker.ask(body, name))["prompt_cache_diagnostics"]
        assert told == {"type": "comparison_response_not_found"}


async def test_it_is_told_to_those_that_ask_and_as_the_client_types_it(world: World) -> None:
    client = world.client()
    first = await client.responses.create(model=MODEL, input="hello", max_output_tokens=4)
    assert first.prompt_cache_diagnostics is None
    second = await client.responses.create(
        model=MODEL,
        input="hello there",
        max_output_tokens=4,
        prompt_cache_options={"comparison_response_id": first.id},
    )
    assert second.prompt_cache_diagnostics is not None
    assert second.prompt_cache_diagnostics.type == "cache_miss"
    assert second.prompt_cache_options is not None
    assert second.prompt_cache_options.comparison_response_id == first.id
    kept = await client.responses.retrieve(second.id)
    assert kept.prompt_cache_diagnostics == second.prompt_cache_diagnostics


async def test_a_socket_compares_with_what_it_alone_knows(world: World) -> None:
    async with socket(world) as raw:
        await raw.create("hello to all of you", store=False, max_output_tokens=4)
        first = (await raw.turn())[-1]["response"]["id"]
        fields = {"max_output_tokens": 4, "prompt_cache_options": {"comparison_response_id": first}}
        await raw.create("hello to all of you", store=False, **fields)
        told = (await raw.turn())[-1]["response"]["prompt_cache_diagnostics"]
        assert told["type"] == "cache_hit"
