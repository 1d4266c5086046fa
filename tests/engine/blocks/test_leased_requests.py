"""Requests that ask for what they use to be kept, and what is told of it."""

from __future__ import annotations

import math
import random

import pytest

from engine.api import (
    EVERYTHING,
    BlockFate,
    CachePolicy,
    Kind,
    RequestRefused,
    TenantShare,
)
from engine.blocks.hashing import Extras, block_hashes
from engine.blocks.losses import Losses
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine
from engine.validation import check_request
from tests.engine.blocks.eviction.test_leases import Clock
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import cached_tokens, make_request, run_to_end, simulated_core

PROMPT = random_prompt(random.Random(1), 41)
LEASE = CachePolicy(lease_s=60.0)


def serve(core: EngineCore, prompt: list[int], out: int = 1, **fields: object) -> None:
    core.submit(make_request("r", prompt, out, **fields))
    run_to_end(core)


def flood(core: EngineCore, prompts: int = 20, tenant: str = "b") -> None:
    for number in range(prompts):
        serve(core, random_prompt(random.Random(100 + number), 38), tenant=tenant)


def hashes_of(prompt: list[int], tenant: str = "a") -> list[bytes]:
    return block_hashes(
        prompt, 4, make_request("r", prompt, tenant=tenant).namespaces, Extras(b"simulated")
    )


def fates(core: EngineCore, prompt: list[int]) -> set[tuple[str, str | None]]:
    return {(one.state, one.why) for one in core.scheduler.tiers.fates(hashes_of(prompt))}


@pytest.mark.parametrize(("policy", "found"), [(LEASE, 41), (CachePolicy(), 0)])
def test_a_leased_prompt_is_found_behind_a_flood(policy: CachePolicy, found: int) -> None:
    core = simulated_core(num_blocks=40)
    serve(core, PROMPT, cache=policy)
    flood(core)
    assert cached_tokens(core, make_request("again", [*PROMPT, 5], 1)) == found


@pytest.mark.parametrize("up_to", [20, 24])
@pytest.mark.parametrize("kind", [Kind(window=3), Kind(window=6, pages=2), Kind(chunk=12)])
def test_a_lease_keeps_what_a_window_shows_where_others_go_on(
    kind: Kind, up_to: int | None
) -> None:
    core = simulated_core(num_blocks=40, kinds=(EVERYTHING, kind))
    serve(core, PROMPT, out=9, cache=CachePolicy(lease_s=60.0, up_to=up_to))
    flood(core)
    assert cached_tokens(core, make_request("again", [*PROMPT, 5], 1)) == up_to


@pytest.mark.parametrize(("up_to", "blocks"), [(None, 12), (22, 6), (20, 5), (3, 1), (0, 0)])
def test_what_is_written_is_leased_and_nothing_else(up_to: int | None, blocks: int) -> None:
    core = simulated_core(num_blocks=40)
    serve(core, PROMPT, out=5, cache=CachePolicy(lease_s=60.0, up_to=up_to))
    assert core.stats().blocks_leased == core.stats().tenants.get("a").blocks_leased == blocks
    flood(core)
    found = cached_tokens(core, make_request("again", [*PROMPT, 5], 1))
    assert found == (41 if up_to is None else up_to)


def test_a_lease_begins_anew_when_its_tenant_uses_the_blocks() -> None:
    clock = Clock()
    core = simulated_core(num_blocks=40, eviction="lru", clock=clock)
    serve(core, PROMPT, cache=LEASE)
    clock.now = 50.0
    serve(core, PROMPT)
    clock.now = 100.0
    flood(core)
    assert cached_tokens(core, make_request("again", PROMPT, 1)) == 40
    run_to_end(core)
    clock.now = 170.0
    flood(core)
    assert cached_tokens(core, make_request("too late", PROMPT, 1)) == 0


def test_what_several_sequences_used_is_leased_once() -> None:
    core = simulated_core(num_blocks=40)
    serve(core, PROMPT[:40], cache=CachePolicy(lease_s=60.0, up_to=40), num_sequences=4)
    assert core.stats().blocks_leased == 10


def test_an_aborted_request_leases_what_it_has_computed() -> None:
    core = simulated_core(num_blocks=40, step_token_budget=16)
    core.submit(make_request("r", PROMPT, 1, cache=LEASE))
    core.step()
    core.abort("r")
    core.scheduler.check()
    assert core.stats().blocks_leased == 4


def test_a_tenant_leases_no_more_than_it_may() -> None:
    share = TenantShare(max_leased_blocks=4)
    core = simulated_core(num_blocks=40, lease_share=0.15)
    serve(core, PROMPT, cache=LEASE, share=share, tenant="limited")
    serve(core, PROMPT, cache=LEASE)
    tenants = core.stats().tenants
    assert (tenants["limited"].blocks_leased, tenants["limited"].leases_cut) == (4, 7)
    assert (tenants["a"].blocks_leased, tenants["a"].leases_cut) == (6, 5)
    assert (core.stats().blocks_leased, core.stats().leases_cut) == (10, 12)


WINDOWS = [(EVERYTHING, Kind(window=6, pages=2)), (EVERYTHING, Kind(chunk=12), Kind(window=3))]


@pytest.mark.parametrize("kinds", WINDOWS)
def test_layers_with_windows_lease_by_the_memory_that_they_take(kinds: tuple[Kind, ...]) -> None:
    clock, share = Clock(), TenantShare(max_leased_blocks=4)
    core = simulated_core(num_blocks=40, lease_share=0.15, kinds=kinds, clock=clock)
    serve(core, PROMPT, cache=LEASE, share=share, tenant="limited")
    serve(core, PROMPT, cache=LEASE)
    pool, tenants = core.scheduler.pool, core.stats().tenants
    for tenant, blocks in (("limited", 4), ("a", 6)):
        pages = pool.leases.of(tenant).num_pages
        assert blocks * 3 - 2 <= pages <= blocks * 3, "to the last block that fits"
        assert tenants[tenant].blocks_leased == blocks
        clock.now += 30
        told = core.stats().tenants[tenant].lease_block_seconds
        assert told == pytest.approx(clock.now * pages / 3)


@pytest.mark.parametrize("kinds", WINDOWS)
def test_what_a_limit_leaves_leased_is_a_beginning_of_all_kinds(kinds: tuple[Kind, ...]) -> None:
    core = simulated_core(num_blocks=40, kinds=kinds)
    serve(core, PROMPT, cache=LEASE, share=TenantShare(max_leased_blocks=3))
    pool = core.scheduler.pool
    found = [pool.find(hashes_of(PROMPT))[index] for index in range(10)]
    leased = [index for index, block in enumerate(found) if pool.leases.is_leased(block)]
    assert leased == list(range(len(leased)))
    others = [one for one in pool.leases.blocks if pool.kinds_of[one]]
    beside = {one for index in leased for one in pool.beside(found[index])}
    assert set(others) <= beside, "no window is leased behind what it continues"


def test_what_is_counted_since_the_start_stays_when_a_tenant_is_forgotten() -> None:
    clock, share = Clock(), TenantShare(max_leased_blocks=4)
    core = simulated_core(40, clock=clock)
    serve(core, PROMPT, cache=LEASE, share=share)
    clock.now += 5
    before = core.stats()
    assert (before.leases_cut, before.lease_block_seconds) == (7, 20)
    core.forget_tenant("a")
    clock.now += 5
    after = core.stats()
    assert (after.leases_cut, after.lease_block_seconds) == (7, 20)
    assert "a" not in after.tenants


def test_leases_cost_running_requests_nothing_but_are_told_when_they_break() -> None:
    clock = Clock()
    core = simulated_core(num_blocks=12, clock=clock)
    serve(core, PROMPT, cache=LEASE)
    clock.now = 10.0
    serve(core, random_prompt(random.Random(3), 44), 2, tenant="b")
    stats = core.stats()
    assert (stats.preemptions, stats.leases_broken) == (0, 11)
    assert (stats.blocks_leased, stats.lease_block_seconds) == (0, 110.0)
    assert stats.tenants["a"].leases_broken == 11
    assert fates(core, PROMPT) == {("evicted", "pressure")}


def test_a_broken_lease_leaves_a_copy_on_the_host() -> None:
    core = simulated_core(num_blocks=12, num_host_blocks=12)
    serve(core, PROMPT, cache=LEASE)
    serve(core, random_prompt(random.Random(3), 44), 2, tenant="b")
    assert core.stats().leases_broken == 11
    assert fates(core, PROMPT) == {("present", None)}
    assert cached_tokens(core, make_request("again", [*PROMPT, 5], 1)) == 40


def test_a_failed_step_ends_the_leases_of_what_it_was_to_write() -> None:
    core = simulated_core(num_blocks=40)
    serve(core, PROMPT, cache=LEASE)
    core.scheduler.fail_all("broken")
    core.scheduler.check()
    assert core.stats().blocks_leased == 0


def test_why_a_block_is_gone_is_told_to_who_knows_its_hash() -> None:
    clock = Clock()
    core = simulated_core(num_blocks=40, eviction="lru", clock=clock)
    assert fates(core, PROMPT) == {("never_seen", None)}
    serve(core, PROMPT, cache=LEASE)
    assert fates(core, PROMPT) == {("present", None)}
    clock.now = 70.0
    flood(core, tenant="a")
    assert fates(core, PROMPT) == {("evicted", "expired")}
    clock.now = 75.0
    (fate,) = core.scheduler.tiers.fates(hashes_of(PROMPT)[:1])
    assert fate == BlockFate("evicted", 5.0, "expired")
    serve(core, PROMPT, cache=LEASE, share=TenantShare(max_leased_blocks=2))
    flood(core)
    assert fates(core, PROMPT) == {("present", None), ("evicted", "own_quota")}
    serve(core, PROMPT)
    core.forget_tenant("a")
    assert fates(core, PROMPT) == {("evicted", "deleted")}
    serve(core, PROMPT)
    flood(core)
    assert fates(core, PROMPT) == {("evicted", "pressure")}


def test_losses_are_remembered_for_four_times_the_pool() -> None:
    losses = Losses(5, Clock())
    for number in range(25):
        losses.add(b"h%04d" % number, "pressure")
    states = [losses.fate(b"h%04d" % number).state for number in range(25)]
    assert states == ["lost_long_ago"] * 5 + ["evicted"] * 20


async def test_the_client_is_told_what_became_of_blocks() -> None:
    engine = LocalEngine(lambda: simulated_core(num_blocks=40))
    await engine.start()
    async for _ in engine.generate(make_request("r", PROMPT, 1, cache=LEASE)):
        pass
    hashes = hashes_of(PROMPT)
    assert [one.state for one in await engine.block_fates(hashes)] == ["present"] * 10
    await engine.forget_tenant("a")
    found = await engine.block_fates([*hashes, b"another"])
    assert [one.why for one in found] == ["deleted"] * 10 + [None]
    with pytest.raises(ValueError, match="there may be 40, not 41"):
        await engine.block_fates([b"h"] * 41)
    await engine.close()


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 1e9])
def test_a_lease_that_no_one_can_mean_is_refused(seconds: float) -> None:
    request = make_request("r", PROMPT, 1, cache=CachePolicy(lease_s=seconds))
    with pytest.raises(RequestRefused, match=r"lease_s must be 0 \.\.\. 604800") as refusal:
        check_request(request, simulated_core().info)
    assert refusal.value.param == "cache"
