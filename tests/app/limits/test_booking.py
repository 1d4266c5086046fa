"""What is computed for tenants and for share groups is booked to whoever pays for it, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import date
from unittest.mock import AsyncMock, Mock

import httpx
import msgspec
import pytest
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from app.background.booking import LeaseBooking
from app.limits.booking import Bill, Booking, SharedHead, Used, shared_head
from engine.api import (
    AdapterUse,
    CachePolicy,
    EngineRequest,
    EngineStats,
    Namespaces,
    SamplingParams,
    TenantStats,
)
from engine.blocks.eviction.leases import Leases, LeaseTerms
from tenants.records import ShareGroup
from tenants.usage.journal import BILL_BYTES
from tenants.usage.prices import NANOS, TOKENS_PRICED, PriceList, Prices
from tests.app.conftest import MODEL, World
from tests.app.pooled_engine import BLOCK_SIZE, NUM_BLOCKS, PooledEngine

LAW = "You are the lawyer of all of us, and of nobody else. " * 6
GROUP = ShareGroup(id="law", name="law", namespace_secret=b"s" * 32, created_at=0.0)


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()


IDLE = TenantStats(
    running=0,
    waiting=0,
    blocks_held=0,
    blocks_shared=0,
    blocks_cached=0,
    blocks_pinned=0,
    served=0.0,
)


async def computed(world: World) -> dict[str, int]:
    """What each tenant is charged for, once all that has ended is counted."""
    await world.app.state.service.gate.close()
    await world.stores.usage.flush()
    read = world.stores.usage.read
    return {
        name: sum(day.computed_tokens for day in await read(name, date.min, date.max))
        for name in world.tenants
    }


async def ask(world: World, tenant: str, text: str, instructions: str = LAW) -> None:
    await world.client(tenant).responses.create(
        model=MODEL, instructions=instructions, input=text, max_output_tokens=4
    )


async def test_a_groups_members_are_charged_what_was_computed_and_each_by_its_use(
    world: World, engine: PooledEngine
) -> None:
    await world.stores.groups.create("law")
    for name in world.tenants:
        await world.stores.tenants.update_tenant(name, lambda one: replace(one, share_group="law"))
    await world.register("@law", "law", LAW)
    warmed = (await engine.stats()).prompt_tokens
    assert warmed > 200
    await ask(world, "acme", "hello")
    stats = await engine.stats()
    alone = await computed(world)
    assert alone == {"acme": stats.prompt_tokens - stats.cached_tokens, "umbra": 0}
    await engine.clear()
    for text in ("a question", "another one"):
        await ask(world, "umbra", text)
    stats, charged = await engine.stats(), await computed(world)
    assert sum(charged.values()) == stats.prompt_tokens - stats.cached_tokens
    # What was warmed, and what `umbra` found gone, is paid for by who used it: twice and once.
    assert charged["acme"] < alone["acme"]
    assert charged["umbra"] > warmed


async def test_a_prompt_of_its_own_is_charged_to_its_tenant_alone(
    world: World, engine: PooledEngine
) -> None:
    await world.register("acme", "law", LAW)
    await ask(world, "acme", "hello")
    await ask(world, "umbra", "hello", "Be brief.")
    stats, charged = await engine.stats(), await computed(world)
    assert sum(charged.values()) == stats.prompt_tokens - stats.cached_tokens
    assert charged["acme"] > 200 > charged["umbra"] > 0
    (today,) = await world.stores.usage.read("acme", date.min, date.max)
    assert today.cache_write_tokens == charged["acme"]


async def test_leases_are_booked_once_also_over_a_restart_of_the_engine(
    world: World, engine: PooledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.stores.groups.create("law")
    real = await engine.stats()
    counted: dict[str, float] = {}
    since = 1.0

    async def stats() -> EngineStats:
        tenants = {
            name: replace(IDLE, lease_block_seconds=one, leases_since=since)
            for name, one in counted.items()
        }
        return replace(real, tenants=tenants)

    monkeypatch.setattr(engine, "stats", stats)
    booking = world.app.state.service.lease_booking
    for counted["acme"], counted["@law"] in ((10.6, 0.0), (26.0, 100.0), (25.9, 100.0)):
        await booking.book()

    since = 2.0  # a new engine
    counted["acme"], counted["@law"] = 30.2, 0.0
    await booking.book()
    world.stores.usage.add_shared("@law", user="umbra", used_tokens=1)
    await world.stores.usage.flush()
    for name, seconds in (("acme", 56), ("umbra", 100)):
        (today,) = await world.stores.usage.read(name, date.min, date.max)
        assert today.lease_block_seconds == seconds


async def test_leases_are_booked_also_of_who_was_forgotten_meanwhile() -> None:
    now, meter, engine = 0.0, Mock(generations=AsyncMock(return_value={})), AsyncMock()
    leases = Leases(lambda: now, [1] * 3)
    booking = LeaseBooking(engine, Booking(meter), meter)
    for forgotten in (True, True, False):
        leases.grant([1, 2], LeaseTerms("acme", 1000.0))
        for seconds in (3.5, 4.5):
            now += seconds
            record = leases.of("acme")
            acme = replace(IDLE, lease_block_seconds=record.page_seconds, leases_since=record.begun)
            engine.stats.return_value.tenants = {"acme": acme}
            await booking.book()
        if forgotten:
            leases.forget("acme")
    booked = [call.kwargs["lease_block_seconds"] for call in meter.add.call_args_list]
    assert booked == [7, 9] * 3


def test_leases_cost_the_same_however_often_they_are_booked() -> None:
    meter = Mock()
    booking = Booking(meter, PriceList(model=Prices(currency="EUR", block_hour=100)))
    for seconds in range(3600):
        booking.leased("acme", seconds, seconds + 1)
    booked = [call.kwargs for call in meter.add.call_args_list]
    assert sum(one["cost_nanos"] for one in booked) == 100
    assert sum(one["lease_block_seconds"] for one in booked) == 3600


def request(key: bytes, shared_tokens: int, **changes: object) -> EngineRequest:
    asked = EngineRequest(
        request_id="r",
        tenant="acme",
        prompt=[1] * 100,
        namespaces=Namespaces(shared_key=key, private_key=b"p" * 32, shared_tokens=shared_tokens),
        sampling=SamplingParams(max_tokens=1),
    )
    return replace(asked, **changes)


def test_only_whole_blocks_that_the_group_can_find_are_the_groups() -> None:
    key = GROUP.namespace_key

    def tokens(asked: EngineRequest, group: ShareGroup | None = GROUP) -> int | None:
        head = shared_head(asked, group, 16)
        return None if head is None else head.tokens

    assert tokens(request(key, 47)) == 32
    assert tokens(request(key, 47, cache=CachePolicy(up_to=20))) == 16
    assert tokens(request(key, 47, cache=CachePolicy(up_to=0))) == 0
    assert tokens(request(b"another" * 5, 47)) is None
    assert tokens(request(key, 47), None) is None
    scored = SamplingParams(max_tokens=1, prompt_logprobs=0)
    assert tokens(request(key, 47, sampling=scored)) is None
    assert tokens(request(key, 47, adapter=AdapterUse(b"own"))) == 0
    assert tokens(request(key, 47, adapter=AdapterUse(b"own", start=31))) == 16


def test_a_groups_head_costs_what_the_model_does_whatever_the_adapter_behind_it() -> None:
    meter = Mock(booking=Mock(return_value=nullcontext()))
    prices = PriceList(
        model=Prices(currency="EUR", input=1, cached=1, written=1, output=1),
        adapters={"acme/judge": Prices(currency="EUR", input=10, cached=5, written=10, output=20)},
    )
    bill = Bill(
        tenant_id="acme",
        generation="1",
        prices=prices.of("acme", "judge"),
        head=SharedHead(group="@law", tokens=32),
        adapter="judge",
    )
    used = Used(prompt_tokens=64, cached_tokens=16, cache_write_tokens=16, output_tokens=2)
    assert Booking(meter, prices).request(bill, used) == 32 * 10 + 16 * 5 + 2 * 20
    assert meter.add_shared.call_args.kwargs["cost_nanos"] == 16
    assert meter.add.call_args.kwargs["adapter"] == "judge"


def test_what_is_kept_of_a_request_while_it_runs_has_room_for_all_names() -> None:
    most = NANOS // TOKENS_PRICED * TOKENS_PRICED
    dear = Prices(
        currency="E" * 32, input=most, cached=most, written=most, output=most, block_hour=most
    )
    group, generation = "@" + "g" * 63, repr(1767225600.1234567)
    bill = Bill(
        tenant_id="a" * 63,
        generation=generation,
        prices=dear,
        reservation=f"{'f' * 16}*1000:{10**18}",
        prompt_tokens=10**7,
        head=SharedHead(group=group, generation=generation, tokens=10**7),
        adapter=f"{group}/{'n' * 64}",
    )
    assert len(msgspec.msgpack.encode(bill)) <= BILL_BYTES


async def test_an_operator_sees_what_other_sizes_of_cache_would_have_found(
    world: World, admin: httpx.AsyncClient
) -> None:
    for _ in range(2):
        await ask(world, "acme", "hello")
    seen = (await admin.get("/cache")).json()
    assert (seen["block_size"], seen["blocks"]) == (BLOCK_SIZE, NUM_BLOCKS)
    by_size = {one["blocks"]: one["found"] for one in seen["sizes"]}
    assert list(by_size) == [40, 80, 160, 320, 640, 1280, 2560]
    assert by_size[160] == by_size[2560] == 0.5
