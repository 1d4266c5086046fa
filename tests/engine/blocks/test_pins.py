import itertools
import random

import pytest
from msgspec import structs

from engine.api import Kind, RequestRefused, TenantShare, TokenDelta
from engine.blocks.pool import BlockPool
from engine.blocks.table import BlockTable
from engine.serve.core import EngineCore
from engine.validation import check_request
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import cached_tokens, make_request, run_to_end, simulated_core

PROMPT = random_prompt(random.Random(1), 42)


def pin(
    core: EngineCore, name: str, prompt: list[int], tenant: str = "a", limit: int | None = None
) -> TokenDelta:
    """Pin `prompt` and return the request's only delta."""
    share = TenantShare(max_pinned_blocks=limit)
    core.submit(make_request(f"pin {name}", prompt, 0, tenant=tenant, pin=name, share=share))
    deltas = []
    while not core.is_idle:
        deltas += core.step()
        core.scheduler.check()
    (delta,) = deltas
    return delta


def burst(core: EngineCore, tenant: str) -> None:
    rng = random.Random(2)
    for index in range(30):
        core.submit(make_request(f"burst{index}", random_prompt(rng, 40), 20, tenant=tenant))
    run_to_end(core)


def cached(core: EngineCore, prompt: list[int], tenant: str = "a") -> int:
    tokens = cached_tokens(core, make_request("probe", [*prompt, 5], 1, tenant=tenant))
    run_to_end(core)
    return tokens


@pytest.mark.parametrize("tenant", ["a", "b"])
@pytest.mark.parametrize("pinned", [True, False])
def test_a_pinned_prompt_outlives_any_burst(pinned: bool, tenant: str) -> None:
    core = simulated_core(num_blocks=40)
    if pinned:
        assert pin(core, "p", PROMPT).finish_reason == "length"
        assert core.stats().blocks_pinned == 10
    else:
        core.submit(make_request("warm", PROMPT, 0))
        run_to_end(core)
    burst(core, tenant)
    assert cached(core, PROMPT) == (40 if pinned else 0)


def windowed(window: int, budget: int, **fields: object) -> EngineCore:
    """With memory for 40 blocks, and one request at a time, unless it is said otherwise."""
    return simulated_core(
        step_token_budget=budget,
        kinds=(Kind(), Kind(window=window)),
        **{"num_blocks": 40, "max_running_requests": 1} | fields,
    )


@pytest.mark.parametrize("window", [3, 6, 9])
def test_a_pin_has_the_window_that_is_seen_behind_its_last_block(window: int) -> None:
    """However its last tokens came: a step begins by giving back what none behind them sees."""
    for budget, length in itertools.product(range(3, 10), range(24, 32)):
        core = windowed(window, budget)
        pin(core, "p", PROMPT[:length])
        core.submit(make_request("burst", random_prompt(random.Random(2), 150), 0, tenant="b"))
        run_to_end(core)
        assert cached(core, PROMPT[:length]) == length // 4 * 4, (budget, length)


def test_a_pin_has_that_window_though_its_last_step_takes_all_memory_for_another() -> None:
    for budget, length, other in itertools.product(range(12, 15), range(25, 28), range(12, 17)):
        core = windowed(3, budget, num_blocks=9, max_running_requests=2)
        core.submit(make_request("pin", PROMPT[:length], 0, pin="p"))
        core.submit(make_request("other", [7] * other, 0, tenant="b"))
        run_to_end(core)
        assert cached(core, PROMPT[:length]) >= length // 4 * 4, (budget, length, other)


@pytest.mark.parametrize("window", [3, 6, 9])
def test_a_pin_that_was_swapped_has_that_window(window: int) -> None:
    for budget, steps in itertools.product(range(3, 10), range(1, 10)):
        core = windowed(window, budget, num_host_blocks=40, recovery="swap")
        core.submit(make_request("pin", PROMPT[:27], 0, pin="p"))
        run_to_end(core, preempt_after=steps)
        core.submit(make_request("burst", random_prompt(random.Random(2), 150), 0, tenant="b"))
        run_to_end(core)
        core.scheduler.tiers.host.forget_owner("a")
        assert cached(core, PROMPT[:27]) >= 24, (budget, steps)


def test_unpinned_blocks_can_be_evicted_again() -> None:
    core = simulated_core(num_blocks=40)
    pin(core, "p", PROMPT)
    core.scheduler.pins.unpin("p")
    core.scheduler.pins.unpin("p")
    core.scheduler.check()
    assert core.stats().blocks_pinned == 0
    assert cached(core, PROMPT) == 42, "still cached, until the memory is needed"
    burst(core, "b")
    assert cached(core, PROMPT) == 0


def test_pinning_a_name_again_replaces_what_it_held_and_shared_blocks_count_once() -> None:
    core = simulated_core(num_blocks=40)
    longer = [*PROMPT[:20], *random_prompt(random.Random(3), 24)]
    pin(core, "p", PROMPT, limit=11)
    assert pin(core, "p", longer, limit=11).finish_reason == "length"
    assert core.stats().blocks_pinned == 11
    assert pin(core, "q", longer[:30], limit=11).finish_reason == "length"
    assert core.stats().blocks_pinned == 11, "the second name holds some of the same blocks"
    core.scheduler.pins.unpin("p")
    assert core.stats().blocks_pinned == 7
    core.scheduler.check()


def test_a_pin_beyond_the_tenants_quota_is_an_error_and_leaves_the_old_pin() -> None:
    core = simulated_core(num_blocks=40)
    pin(core, "p", PROMPT[:20], limit=8)
    delta = pin(core, "p", PROMPT, limit=8)
    assert delta.finish_reason == "error"
    assert "limit of 8" in (delta.error or "")
    assert core.stats().blocks_pinned == 5
    assert pin(core, "p", PROMPT, limit=10).finish_reason == "length"
    assert pin(core, "x", PROMPT, tenant="b", limit=10).finish_reason == "length"


def test_nothing_is_pinned_without_a_prefix_cache() -> None:
    core = simulated_core(num_blocks=40, prefix_cache=False)
    delta = pin(core, "p", PROMPT)
    assert delta.finish_reason == "error"
    assert "nothing is cached" in (delta.error or "")


@pytest.mark.parametrize(
    ("max_tokens", "cache", "refused"), [(0, True, False), (1, True, True), (0, False, True)]
)
def test_only_a_cached_prompt_can_be_pinned(max_tokens: int, cache: bool, refused: bool) -> None:
    info = simulated_core().info
    request = make_request("r", PROMPT, max_tokens, pin="p", cache=cache)
    if not refused:
        check_request(request, info)
        return
    with pytest.raises(RequestRefused) as refusal:
        check_request(request, info)
    assert refusal.value.param == "pin"


def test_an_aborted_pin_pins_nothing() -> None:
    core = simulated_core(num_blocks=40, step_token_budget=16)
    core.submit(make_request("r", PROMPT, 0, pin="p"))
    core.step()
    core.abort("r")
    core.scheduler.check()
    assert core.stats().blocks_pinned == core.stats().blocks_in_use == 0


def test_a_prompt_that_fills_its_last_block_is_pinned_whole() -> None:
    core = simulated_core(num_blocks=40)
    core.submit(make_request("before", PROMPT[:40], 0))
    run_to_end(core)
    pin(core, "p", PROMPT[:40])
    assert core.stats().blocks_pinned == 10
    burst(core, "b")
    assert cached(core, PROMPT[:40]) == 40


def test_pins_survive_a_failed_step_and_keep_what_they_hold(monkeypatch) -> None:
    core = simulated_core(num_blocks=40)
    pin(core, "p", PROMPT)
    core.submit(make_request("broken", [7] * 20, 5))
    with monkeypatch.context() as patch:
        patch.setattr(core._runner, "execute", lambda plan: 1 / 0)
        assert core.step()[0].finish_reason == "error"
    core.scheduler.check()
    assert cached(core, PROMPT) == 40
    assert cached(core, [7] * 20) == 0, "blocks of the failed step are not trusted"


def test_requests_for_which_pins_leave_no_room_fail_and_the_others_are_served() -> None:
    core = simulated_core(num_blocks=20)
    pin(core, "p", PROMPT)
    core.submit(make_request("large", [6] * 50, 1, tenant="b"))
    core.submit(make_request("small", [6] * 20, 1, tenant="b"))
    core.submit(make_request("hit", [*PROMPT, *[6] * 20], 1, tenant="a"))
    ends = {}
    while not core.is_idle:
        ends |= {delta.request_id: delta.finish_reason for delta in core.step()}
        core.scheduler.check()
    assert ends == {"large": "error", "small": "length", "hit": "length"}


def test_forgetting_a_tenant_drops_its_pins_and_no_others() -> None:
    core = simulated_core(num_blocks=40)
    pin(core, "p", PROMPT)
    pin(core, "q", PROMPT, tenant="b")
    core.scheduler.forget_tenant("a")
    core.scheduler.check()
    assert core.stats().tenants.keys() == {"b"}
    assert core.stats().blocks_pinned == 10
    assert cached(core, PROMPT) == 0
    assert cached(core, PROMPT, tenant="b") == 42


def test_what_others_have_pinned_stays_when_the_tenant_that_computed_it_is_forgotten() -> None:
    core = simulated_core()
    group = make_request("group", PROMPT, 0, tenant="g")
    computed = structs.replace(group, request_id="first", tenant="a")
    core.submit(computed)
    run_to_end(core)
    pinned = structs.replace(group, tenant="g", pin="law")
    core.submit(pinned)
    run_to_end(core)
    assert cached(core, PROMPT, tenant="g") == 42
    core.scheduler.forget_tenant("a")
    core.scheduler.check()
    assert cached(core, PROMPT, tenant="g") == 42
    core.scheduler.pins.unpin("law")
    core.scheduler.forget_tenant("a")
    assert cached(core, PROMPT, tenant="g") == 0


def test_what_is_pinned_can_be_found_even_if_an_equal_block_was_evicted_meanwhile() -> None:
    pool = BlockPool(4)
    namespaces = make_request("r", PROMPT).namespaces
    first, second = (BlockTable(pool, 4, "a", namespaces, b"") for _ in range(2))
    for table in (first, second):
        table.admit(8, [[]])
        table.seal(PROMPT[:8], 8)
    assert second.findable() == first.blocks, "equal blocks are found once"
    first.release()
    pool.release(pool.allocate(2, "b"))
    assert second.findable() == second.blocks
    assert len(pool.find(second.prefix_hashes(PROMPT[:9]))) == 2
    pool.check()
