"""What one tenant may hold, and what no other tenant may take from it."""

import random
from typing import get_args

import pytest

from engine.api import RequestRefused, TenantShare
from engine.blocks.eviction.policy import Eviction
from engine.blocks.pool import BlockPool
from engine.serve.core import EngineCore
from engine.validation import check_request
from tests.engine.blocks.test_pool import available
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import cached_tokens, make_request, run_to_end, simulated_core


def cached_prompt(core: EngineCore, tokens: int, **fields: object) -> list[int]:
    """A prompt of tenant a whose blocks are in the cache."""
    prompt = random_prompt(random.Random(1), tokens)
    core.submit(make_request("warm", prompt, 0, tenant="a", **fields))
    run_to_end(core)
    return prompt


def burst(core: EngineCore, tenant: str = "b") -> None:
    """Another tenant needs all the memory it can get, many times over."""
    rng = random.Random(2)
    for index in range(40):
        core.submit(make_request(f"burst{index}", random_prompt(rng, 40), 20, tenant=tenant))
    run_to_end(core)


def hit(core: EngineCore, prompt: list[int], tenant: str = "a") -> int:
    cached = cached_tokens(core, make_request("again", [*prompt, 5], 1, tenant=tenant))
    run_to_end(core)
    return cached


@pytest.mark.parametrize("eviction", get_args(Eviction))
@pytest.mark.parametrize(("reserved", "kept"), [(0, 0), (3, 12), (10, 40), (99, 40)])
def test_a_neighbours_burst_leaves_the_reserved_blocks(
    reserved: int, kept: int, eviction: Eviction
) -> None:
    core = simulated_core(num_blocks=40, eviction=eviction)
    prompt = cached_prompt(core, 40, share=TenantShare(reserved_blocks=reserved))
    assert core.stats().tenants["a"].blocks_cached == 10
    burst(core)
    assert core.stats().tenants["a"].blocks_cached == kept // 4
    assert hit(core, prompt) == kept, "the head of the prompt is what was kept"


def test_a_tenants_own_burst_may_take_its_reserve() -> None:
    core = simulated_core(num_blocks=30)
    prompt = cached_prompt(core, 40, share=TenantShare(reserved_blocks=10))
    rng = random.Random(3)
    core.submit(
        make_request("own", random_prompt(rng, 116), 4, share=TenantShare(reserved_blocks=10))
    )
    run_to_end(core)
    assert hit(core, prompt) == 0


def test_a_reserve_that_grows_protects_what_is_cached_and_one_that_shrinks_lets_go() -> None:
    pool = BlockPool(10)
    blocks = pool.allocate(6, "a")
    for block in blocks:
        pool.register(block, bytes([block]))
    pool.release(blocks)
    assert available(pool, "b") == 10
    pool.reserve("a", 4)
    pool.check()
    assert (available(pool, "b"), available(pool, "a")) == (6, 10)
    pool.reserve("a", 1)
    pool.check()
    assert available(pool, "b") == 9
    assert pool.allocate(9, "b").count(blocks[0]) == 0, "the head goes last"


def test_the_reserve_counts_what_is_cached_now_not_what_is_in_use() -> None:
    pool = BlockPool(10)
    blocks = pool.allocate(6, "a")
    for block in blocks:
        pool.register(block, bytes([block]))
    pool.release(blocks)
    pool.reserve("a", 3)
    pool.acquire(blocks[:3])
    pool.check()
    assert available(pool, "b") == 4, "the three that are left are protected instead"
    assert pool.can_allocate(4, "b")
    assert not pool.can_allocate(5, "b")


def test_a_capped_tenant_waits_at_its_limit_and_nobody_waits_for_it() -> None:
    core = simulated_core(num_blocks=100)
    rng = random.Random(4)
    share = TenantShare(max_blocks=12)
    for index in range(8):
        request = make_request(f"a{index}", random_prompt(rng, 16), 20, tenant="a", share=share)
        core.submit(request)
    core.submit(make_request("b", random_prompt(rng, 100), 20, tenant="b"))
    core.step()
    assert "b" in core.scheduler.running
    peak = 0
    while not core.is_idle:
        core.step()
        core.scheduler.check()
        peak = max(peak, core.stats().tenants["a"].blocks_held)
    assert 8 <= peak <= 12


def test_a_cap_counts_shared_blocks_once() -> None:
    core = simulated_core(num_blocks=100)
    prompt = random_prompt(random.Random(5), 40)
    share = TenantShare(max_blocks=20)
    for index in range(5):
        core.submit(make_request(f"a{index}", [*prompt, 4 + index], 2, tenant="a", share=share))
    core.step()
    core.step()
    stats = core.stats().tenants["a"]
    assert (stats.running, stats.blocks_held, stats.blocks_shared) == (5, 15, 10)


def test_a_growing_capped_tenant_preempts_itself_only() -> None:
    core = simulated_core(num_blocks=100)
    rng = random.Random(6)
    share = TenantShare(max_blocks=12)
    prompts = {f"a{index}": random_prompt(rng, 5) for index in range(3)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 40, tenant="a", share=share))
    core.submit(make_request("b", [5] * 40, 60, tenant="b"))
    core.step()
    while not core.is_idle and "b" in core.scheduler.lifecycle.live:
        assert "b" in core.scheduler.running
        core.step()
        core.scheduler.check()
    assert core.stats().preemptions > 0
    run_to_end(core)


def test_a_cap_banks_no_credit() -> None:
    core = simulated_core(num_blocks=100, max_running_requests=8)
    rng = random.Random(7)
    for index in range(150):
        share = TenantShare(max_blocks=9)
        core.submit(make_request(f"a{index}", random_prompt(rng, 4), 25, tenant="a", share=share))
        core.submit(make_request(f"b{index}", random_prompt(rng, 4), 25, tenant="b"))
    for _ in range(150):
        core.step()
    counters = {name: core.scheduler.accounts[name].counter for name in "ab"}
    served = {name: core.scheduler.accounts[name].served for name in "ab"}
    assert served["b"] - served["a"] > 300, "the cap has held it back"
    assert abs(counters["a"] - counters["b"]) < 300
    run_to_end(core)


def test_a_request_beyond_the_cap_is_refused_and_names_the_field() -> None:
    core = simulated_core()
    share = TenantShare(max_blocks=5)
    check_request(make_request("r", [5] * 10, 10, share=share), core.info)
    for prompt, param in ((10, "max_tokens"), (20, "prompt")):
        request = make_request("r", [5] * prompt, 11, share=share)
        with pytest.raises(RequestRefused, match="limit is 5 blocks") as refusal:
            check_request(request, core.info)
        assert refusal.value.param == param


def test_a_request_for_which_reserves_leave_no_room_fails_and_delays_nobody() -> None:
    core = simulated_core(num_blocks=20)
    cached_prompt(core, 40, share=TenantShare(reserved_blocks=10))
    core.submit(make_request("large", [5] * 60, 10, tenant="b"))
    core.submit(make_request("small", [5] * 10, 10, tenant="b"))
    (failed, first) = core.step()
    assert (failed.request_id, failed.finish_reason) == ("large", "error")
    assert "reserves" in (failed.error or "")
    assert first.request_id == "small"
    assert run_to_end(core)["small"] == expected_output([5] * 10, 10)[1:]


def test_a_request_that_outgrows_what_reserves_leave_fails_after_its_last_token() -> None:
    core = simulated_core(num_blocks=20)
    cached_prompt(core, 40, share=TenantShare(reserved_blocks=10))
    core.submit(make_request("grows", [5] * 30, 40, tenant="b"))
    deltas = []
    while not core.is_idle:
        deltas += core.step()
        core.scheduler.check()
    tokens = [token for delta in deltas for token in delta.token_ids]
    assert tokens == expected_output([5] * 30, 40)[: len(tokens)]
    assert len(tokens) == 11
    assert deltas[-1].finish_reason == "error"
    assert "reserves" in (deltas[-1].error or "")


def test_a_deleted_tenant_is_forgotten_at_once_and_others_are_not() -> None:
    core = simulated_core(num_blocks=60)
    prompt = cached_prompt(core, 40, share=TenantShare(reserved_blocks=5))
    other = random_prompt(random.Random(8), 40)
    core.submit(make_request("other", other, 1, tenant="b"))
    core.submit(make_request("running", prompt, 30, tenant="a"))
    core.step()
    core.scheduler.forget_tenant("a")
    core.scheduler.check()
    assert cached_tokens(core, make_request("again", [*prompt, 5], 1, tenant="a")) == 0
    assert cached_tokens(core, make_request("also", [*other, 5], 1, tenant="b")) == 40
    run_to_end(core)
    core.scheduler.forget_tenant("a")
    assert "a" not in core.stats().tenants
    assert core.scheduler.pool.num_cached_of("a") == 0


def test_a_request_without_cache_neither_finds_nor_leaves_anything() -> None:
    core = simulated_core(num_blocks=60)
    prompt = cached_prompt(core, 40)
    private = random_prompt(random.Random(9), 40)
    outputs: list[list[int]] = []

    def cached(prompt: list[int], cache: bool) -> int:
        found = cached_tokens(core, make_request("x", prompt, 6, cache=cache))
        outputs.append(run_to_end(core)["x"])
        return found

    before = core.stats().blocks_cached
    assert cached([*prompt, 5], cache=False) == 0
    assert cached(private, cache=False) == 0
    assert core.stats().blocks_cached == before
    assert cached(private, cache=True) == 0
    assert cached(private, cache=True) == 39, "the same with the cache leaves blocks and finds them"
    assert cached([*prompt, 5], cache=True) == 40
    assert outputs[0] == outputs[-1] == expected_output([*prompt, 5], 6)[1:]


def test_two_requests_of_one_step_without_cache_share_nothing() -> None:
    for cache, hits in ((True, 20), (False, 0)):
        core = simulated_core(step_token_budget=64)
        prompt = random_prompt(random.Random(10), 21)
        for name in ("first", "second"):
            core.submit(make_request(name, prompt, cache=cache))
        assert {delta.request_id: delta.cached_tokens for delta in core.step()}["second"] == hits
        core.scheduler.check()


def test_a_preempted_request_without_cache_is_computed_again() -> None:
    core = simulated_core(num_blocks=20, step_token_budget=64)
    rng = random.Random(11)
    prompts = {str(i): random_prompt(rng, 9) for i in range(6)}
    for request_id, prompt in prompts.items():
        core.submit(make_request(request_id, prompt, max_tokens=40, cache=False))
    outputs = run_to_end(core)
    assert core.stats().preemptions > 0
    assert core.stats().blocks_cached == 0
    assert outputs == {i: expected_output(prompt, 40) for i, prompt in prompts.items()}


def test_stats_tell_each_tenants_part() -> None:
    core = simulated_core(num_blocks=100, max_running_requests=3)
    rng = random.Random(12)
    core.submit(make_request("pin", random_prompt(rng, 9), 0, tenant="a", pin="a/p"))
    run_to_end(core)
    for index in range(3):
        core.submit(make_request(f"b{index}", [4 + index] * 8, 20, tenant="b"))
    core.submit(make_request("a0", [9] * 8, 20, tenant="a"))
    core.step()
    stats = core.stats()
    assert stats.blocks_pinned == stats.tenants["a"].blocks_pinned == 2
    assert (stats.tenants["a"].running, stats.tenants["b"].running) == (1, 2)
    assert (stats.tenants["a"].waiting, stats.tenants["b"].waiting) == (0, 1)
    assert stats.tenants["b"].blocks_held == 4
    assert stats.tenants["b"].served > stats.tenants["a"].served - 11 > 0
    run_to_end(core)
    after = core.stats().tenants["b"]
    assert (after.running, after.waiting, after.blocks_held) == (0, 0, 0)
    assert after.blocks_cached == core.scheduler.pool.num_cached_of("b") > 10
