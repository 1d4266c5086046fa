"""Long prompts are hashed a slice a step, so that nobody waits for them."""

import random

import pytest
from msgspec import structs

from engine.api import TenantShare
from engine.blocks import table
from engine.blocks.hashing import extend_block_hashes
from engine.schedule import prefill
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end, simulated_core

LONG = random_prompt(random.Random(1), 20_000)  # 5,000 blocks
SHORT = random_prompt(random.Random(2), 30)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks each call has hashed."""
    counts: list[int] = []

    def counting(hashes: list[bytes], *args: object) -> None:
        before = len(hashes)
        extend_block_hashes(hashes, *args)
        counts.append(len(hashes) - before)

    monkeypatch.setattr(table, "extend_block_hashes", counting)
    return counts


def test_neighbours_go_on_at_every_step_while_a_long_prompt_is_hashed(hashed: list[int]) -> None:
    core = simulated_core(num_blocks=6000, step_token_budget=8192)
    core.submit(make_request("short", SHORT, 40, tenant="a"))
    core.step()
    core.submit(make_request("long", LONG, 2, tenant="b"))
    core.submit(make_request("later", SHORT[:20], 40, tenant="c"))
    later, steps = [], 0
    hashed.clear()
    while "long" not in core.scheduler.running:
        news = {delta.request_id: delta.token_ids for delta in core.step()}
        assert "short" in news
        later += news.get("later", [])
        steps += 1
        assert sum(hashed) <= prefill._MOST_HASHED
        hashed.clear()
    assert steps > 2
    assert len(later) == steps, "admitted at once, although it came later"
    assert run_to_end(core)["long"] == expected_output(LONG, 2)


def test_a_long_prompt_alone_lets_messages_be_read_while_it_is_hashed(hashed: list[int]) -> None:
    core = simulated_core(num_blocks=6000, step_token_budget=8192)
    core.submit(make_request("long", LONG, 2))
    assert core.step() == []
    assert 0 < sum(hashed) <= prefill._MOST_HASHED
    assert [delta.finish_reason for delta in core.abort("long")] == ["aborted"]
    core.submit(make_request("again", LONG, 2))
    assert run_to_end(core)["again"] == expected_output(LONG, 2)
    core.submit(make_request("warm", LONG, 2))
    (first, *_) = [delta for _ in range(10) for delta in core.step()]
    assert first.cached_tokens == len(LONG) - 1, "what was hashed in slices is found"


def test_the_prompt_of_several_sequences_is_hashed_once(hashed: list[int]) -> None:
    core = simulated_core(num_blocks=6000, step_token_budget=8192)
    core.submit(structs.replace(make_request("r", LONG, 9), num_sequences=8))
    outputs = run_all_to_end(core)["r"]
    assert outputs == {index: expected_output(LONG, 9, index) for index in range(8)}
    assert sum(hashed) < 5_000 + 8 * 4


def test_a_short_prompt_does_not_wait_for_many_long_ones(hashed: list[int]) -> None:
    core = simulated_core(num_blocks=60_000, step_token_budget=8192)
    for index in range(11):
        core.submit(make_request(f"long {index}", LONG[index:], 1, tenant=f"tenant {index}"))
    core.submit(make_request("short", SHORT, 5, tenant="z"))
    assert "short" in {delta.request_id for delta in core.step()}
    assert sum(hashed) <= prefill._MOST_HASHED + 12 * prefill._LEAST_HASHED


def test_a_step_hashes_no_more_for_hundreds_of_tenants_than_for_a_few(hashed: list[int]) -> None:
    core = simulated_core(num_blocks=6000, step_token_budget=8192)
    for index in range(300):
        core.submit(make_request(f"long {index}", LONG[index:], 1, tenant=f"tenant {index}"))
    total = 0
    for _ in range(5):
        hashed.clear()
        core.step()
        assert sum(hashed) <= prefill._MOST_HASHED + prefill._SPARE_HASHED
        total += sum(hashed)
    assert total > 5 * prefill._SPARE_HASHED, "and yet it gets on"


def test_a_tenant_with_a_limit_of_blocks_has_its_prompt_hashed_in_slices_too(
    hashed: list[int],
) -> None:
    core = simulated_core(num_blocks=6000, step_token_budget=8192)
    share = TenantShare(max_blocks=5900)
    core.submit(make_request("short", SHORT, 60, share=share))
    core.step()
    core.submit(make_request("long", LONG, 2, share=share))
    while "long" not in core.scheduler.running:
        hashed.clear()
        assert core.step(), "what runs goes on"
        assert sum(hashed) <= prefill._MOST_HASHED
    assert run_to_end(core)["long"] == expected_output(LONG, 2)
