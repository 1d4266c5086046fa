"""The systems that paging replaced: their allocator, their accounts, and examples done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.paper.baselines.orca import (
    BuddyAllocator,
    Orca,
    reserve_max,
    reserve_oracle,
    reserve_pow2,
)
from bench.paper.baselines.server import MemoryUse, Server, Step, TracedRequest
from bench.paper.baselines.static import PaddedBatches, StaticBatches
from bench.paper.systems import SYSTEMS, Paged, make_server
from bench.paper.workloads import Workload, tokens

CONTEXT = 2048


def request(number: int, prompt: int, output: int, arrival: float = 0.0) -> TracedRequest:
    return TracedRequest(number, arrival, tokens(number, prompt), tokens(number, output))


def run(server: Server, *requests: TracedRequest, limit: int = 10_000) -> list[Step]:
    for one in requests:
        server.submit(one)
    steps = []
    while not server.is_idle:
        steps.append(server.step())
        assert len(steps) < limit
    return steps


def answered_after(steps: list[Step]) -> dict[int, int]:
    """In which step each request was answered, from 1."""
    return {number: at for at, step in enumerate(steps, 1) for number in step.finished}


@given(
    num_slots=st.integers(1, 300),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 64)), max_size=60),
)
def test_buddy_ranges_tile_the_memory_and_never_overlap(
    num_slots: int, moves: list[tuple[bool, int]]
) -> None:
    allocator = BuddyAllocator(num_slots)
    taken: list[int] = []
    for allocates, size in moves:
        if allocates and allocator.can_allocate(size):
            taken.append(allocator.allocate(size))
            assert size <= allocator.size_of(taken[-1]) < 2 * size
        elif not allocates and taken:
            allocator.release(taken.pop(size % len(taken)))
        allocator.check()
        held = sum(map(allocator.size_of, taken))
        assert allocator.num_free == num_slots - held
    for start in taken:
        allocator.release(start)
        allocator.check()
    assert allocator.num_free == num_slots
    assert allocator.can_allocate(1 << num_slots.bit_length() - 1), "everything has merged again"


def test_buddy_memory_can_be_free_and_yet_too_scattered() -> None:
    allocator = BuddyAllocator(16)
    starts = [allocator.allocate(4) for _ in range(4)]
    assert starts == [0, 4, 8, 12]
    allocator.release(starts[1])
    allocator.release(starts[2])
    assert allocator.num_free == 8
    assert not allocator.can_allocate(8), "slots 4 ... 11 are no buddies"
    allocator.release(starts[0])
    assert allocator.allocate(8) == 0
    allocator.check()


def test_orca_splits_every_slot_by_its_use() -> None:
    """A prompt of 5 with an answer of 4 has 8 states; each variant has 64 slots for it."""
    first = {
        reserve_oracle: MemoryUse(token_states=5, reserved=3, free=56),
        reserve_pow2(32): MemoryUse(token_states=5, reserved=3, internal=1, external=7, free=48),
        reserve_max(32): MemoryUse(token_states=5, reserved=3, internal=24, free=32),
    }
    for reservation, expected in first.items():
        steps = run(Orca(64, reservation, max_running=8), request(0, 5, 4))
        assert len(steps) == 4
        assert steps[0].memory == expected
        assert steps[3].memory.token_states == 8
        assert steps[3].memory.reserved == 0
        assert (steps[0].shape.tokens, steps[0].shape.pairs) == (5, 15)
        assert (steps[1].shape.tokens, steps[1].shape.context) == (1, 6)


def test_free_memory_counts_as_external_only_while_it_keeps_someone_waiting() -> None:
    server = Orca(16, reserve_oracle, max_running=8)
    # Four ranges of 4; the second and the third end first, and the next request wants 8.
    outputs = {0: 4, 1: 2, 2: 2, 3: 4}
    short = [request(number, 5 - output, output) for number, output in outputs.items()]
    steps = run(server, *short, request(4, 5, 4))
    assert [step.memory.free for step in steps[:4]] == [0, 0, 0, 0]
    assert [step.memory.external for step in steps[:4]] == [0, 0, 8, 8]
    assert answered_after(steps) == {0: 4, 1: 2, 2: 2, 3: 4, 4: 8}
    assert steps[4].memory == MemoryUse(token_states=5, reserved=3, free=8)


def test_orca_lets_requests_join_and_leave_at_every_step() -> None:
    server = Orca(64, reserve_max(32), max_running=8)
    steps = run(server, request(0, 3, 2), request(1, 3, 6), request(2, 3, 1))
    assert answered_after(steps) == {0: 2, 2: 3, 1: 6}
    assert [step.running for step in steps] == [2, 2, 2, 1, 1, 1]
    assert steps[2].shape.tokens == 3 + 1, "a whole prompt, beside a decoding request"


def test_orca_never_passes_the_limit_on_running_requests() -> None:
    steps = run(Orca(64, reserve_oracle, max_running=1), request(0, 2, 2), request(1, 2, 2))
    assert [step.running for step in steps] == [1, 1, 1, 1]


def test_orca_refuses_what_will_never_fit() -> None:
    with pytest.raises(ValueError, match="never fits"):
        Orca(16, reserve_oracle, max_running=1).submit(request(0, 20, 2))


def test_a_static_batch_answers_when_its_last_request_ends() -> None:
    server = StaticBatches(num_slots=70, context_tokens=32, max_running=8)
    steps = run(server, request(0, 3, 2), request(1, 5, 4), request(2, 3, 1))
    assert answered_after(steps) == {0: 4, 1: 4, 2: 5}
    assert [step.running for step in steps] == [2, 2, 2, 2, 1]
    assert steps[0].memory == MemoryUse(8, reserved=1 + 3, internal=64 - 12, free=6)
    # The first request is over: nobody will read its slots again, and nobody else gets them.
    assert steps[2].memory == MemoryUse(7, reserved=1, internal=64 - 8, free=6)
    assert steps[2].shape.sequences == 2, "rows that have ended are computed on"


def test_padding_is_computed_and_held_but_nothing_is_held_ahead() -> None:
    server = PaddedBatches(num_slots=70, context_tokens=32, max_running=8)
    steps = run(server, request(0, 3, 2), request(1, 5, 4))
    assert steps[0].shape.tokens == 2 * 5
    assert steps[0].memory == MemoryUse(8, internal=2, free=60)
    assert steps[1].shape.context == 2 * 6
    assert steps[3].memory == MemoryUse(8, internal=8, free=70 - 16)


def test_partywall_holds_no_more_than_its_last_blocks() -> None:
    server = Paged(num_slots=64, max_running=8, block_size=4, measure=True)
    steps = run(server, request(0, 5, 4))
    assert steps[0].memory == MemoryUse(token_states=5, reserved=3, free=56)
    assert steps[-1].memory.held == 8


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_slot_is_accounted_for_at_every_step(system: str) -> None:
    num_slots = 4096
    server = make_server(system, num_slots, measure=True)
    trace = Workload("ShareGPT", "ShareGPT", seconds=20).trace(1.0)
    steps = run(server, *trace)
    assert sorted(answered_after(steps)) == [one.number for one in trace]
    for step in steps:
        use = step.memory
        assert use.total == num_slots
        parts = (use.token_states, use.reserved, use.internal, use.external, use.free)
        assert min(parts) >= 0
        assert use.token_states > 0
