"""Blocks for a long prompt are emptied a slice a step, so that nobody waits for it."""

import random

import pytest

from engine.api import Loss
from engine.blocks.pool import BlockPool
from engine.schedule import prefill
from engine.serve.core import EngineCore
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core

MOST = 40
LONG = random_prompt(random.Random(1), 1200)  # 300 blocks
SHORT = random_prompt(random.Random(2), 30)


@pytest.fixture(autouse=True)
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks that have lost what they held, in order."""
    blocks: list[int] = []
    forget = BlockPool._forget

    def noting(pool: BlockPool, block: int, key: bytes, why: Loss | None, by: str = "") -> None:
        blocks.append(block)
        forget(pool, block, key, why, by)

    monkeypatch.setattr(prefill, "_MOST_EMPTIED", MOST)
    monkeypatch.setattr(BlockPool, "_forget", noting)
    return blocks


def full_core(**options: int) -> EngineCore:
    """An engine whose blocks all hold something, as three tenants have left it."""
    core = simulated_core(num_blocks=400, step_token_budget=64, **options)
    for number in range(4):
        prompt = random_prompt(random.Random(number), 440)
        core.submit(make_request(f"old {number}", prompt, 1, tenant=f"old {number % 3}"))
        run_to_end(core)
    assert core.scheduler.pool.num_cached > 390
    return core


@pytest.mark.parametrize("num_host_blocks", [0, 100, 500])
def test_neighbours_go_on_at_every_step_while_blocks_are_emptied(
    emptied: list[int], num_host_blocks: int
) -> None:
    core = full_core(num_host_blocks=num_host_blocks)
    core.submit(make_request("short", SHORT, 60, tenant="a"))
    core.step()
    core.submit(make_request("long", LONG, 2, tenant="b"))
    core.submit(make_request("later", SHORT[:20], 40, tenant="c"))
    steps, later = 0, 0
    while "long" not in core.scheduler.running:
        emptied.clear()
        news = {delta.request_id for delta in core.step()}
        core.scheduler.check()
        assert "short" in news
        later += "later" in news
        # What the others take beside it, and the last slice, at the admission itself.
        assert len(emptied) <= (2 if num_host_blocks else 1) * (2 * MOST + 20)
        steps += 1
    assert steps >= 5
    assert later >= steps - 1, "it waits for nobody's blocks"
    assert run_to_end(core)["long"] == expected_output(LONG, 2)
    core.scheduler.check()


def test_a_prompt_alone_is_admitted_after_rounds_that_compute_nothing(emptied: list[int]) -> None:
    core = full_core()
    core.submit(make_request("long", LONG, 2))
    assert core.step() == []
    core.scheduler.check()
    assert [delta.finish_reason for delta in core.abort("long")] == ["aborted"]
    assert core.scheduler.pool.num_free >= MOST, "whoever comes next finds them empty"
    core.submit(make_request("again", LONG, 2))
    assert run_to_end(core)["again"] == expected_output(LONG, 2)


@pytest.mark.parametrize("num_host_blocks", [0, 60])
def test_what_a_prompt_starts_from_is_not_emptied_for_it(
    emptied: list[int], num_host_blocks: int
) -> None:
    core = simulated_core(num_blocks=400, step_token_budget=64, num_host_blocks=num_host_blocks)
    core.submit(make_request("first", LONG[:600], 1, tenant="b"))
    run_to_end(core)
    for number in range(3):  # the first prompt's blocks are the oldest now
        prompt = random_prompt(random.Random(number), 320)
        core.submit(make_request(f"old {number}", prompt, 1))
        run_to_end(core)
    core.submit(make_request("second", LONG, 2, tenant="b"))
    news = [delta for _ in range(60) for delta in core.step()]
    assert news[0].cached_tokens >= 600
    core.scheduler.check()


def test_many_long_prompts_have_no_more_emptied_in_a_step_than_one(emptied: list[int]) -> None:
    core = full_core()
    for number in range(6):
        prompt = LONG[number:]
        core.submit(make_request(f"long {number}", prompt, 2, tenant=f"tenant {number}"))
    while not core.scheduler.running:
        emptied.clear()
        core.step()
        core.scheduler.check()
        assert len(emptied) <= 2 * MOST
    outputs = run_to_end(core)
    assert outputs["long 5"] == expected_output(LONG[5:], 2)
