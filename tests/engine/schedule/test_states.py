"""Layers that keep a state: where copies are left, which hits they allow, and what is told."""

from __future__ import annotations

import random

import pytest

from engine.api import CachePolicy, ChainBreak, EngineRequest, Kind, StepOutOfMemory
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core

KINDS = (Kind(), Kind(pages=3, is_state=True))
SIZE = 4
HEAD, OTHER = (random_prompt(random.Random(seed), 40) for seed in (1, 2))
MORE, LESS = (random_prompt(random.Random(seed), 10) for seed in (3, 4))


def hybrid(num_blocks: int = 200, **options: object) -> EngineCore:
    return simulated_core(num_blocks, SIZE, kinds=KINDS, **options)  # type: ignore[arg-type]


def found(core: EngineCore, request: EngineRequest) -> int:
    """How much of its prompt a request finds; afterwards the books balance."""
    before = core.stats().cached_tokens
    core.submit(request)
    run_to_end(core)
    core.scheduler.check()
    return core.stats().cached_tokens - before


@pytest.mark.parametrize("num_output", [1, 2, 9, 16])
def test_a_next_turn_goes_on_behind_the_last_full_block_of_the_answer(num_output: int) -> None:
    core = hybrid()
    core.submit(make_request("first", HEAD, num_output))
    answer = run_to_end(core)["first"]
    hit = found(core, make_request("second", HEAD + answer + MORE, 8))
    assert hit % SIZE == 0 <= len(HEAD) + len(answer) - hit <= SIZE


def test_a_turn_that_drops_the_answer_goes_on_where_it_was_said_to() -> None:
    core = hybrid()
    core.submit(make_request("first", HEAD, 16, cache=CachePolicy(ends=(34,))))
    run_to_end(core)
    assert found(core, make_request("second", HEAD[:35] + MORE, 8)) == 32


def test_a_registered_prompts_end_is_gone_on_from_by_whoever_comes_first() -> None:
    core = hybrid()
    assert found(core, make_request("first", HEAD[:24] + MORE, 4, shared_tokens=24)) == 0
    assert found(core, make_request("second", HEAD[:24] + LESS, 4, shared_tokens=24)) == 24


@pytest.mark.parametrize(("end", "hit"), [(9, 8), (18, 16), (33, 32)])
def test_every_breakpoint_is_gone_on_from(end: int, hit: int) -> None:
    core = hybrid()
    found(core, make_request("first", HEAD, 4, cache=CachePolicy(ends=(9, 18, 33, 39))))
    assert found(core, make_request("second", HEAD[:end] + MORE, 4)) == hit


def test_more_breakpoints_than_states_have_room_for_keep_no_request_from_running() -> None:
    core = hybrid(num_blocks=5)
    found(core, make_request("first", HEAD, 4, cache=CachePolicy(ends=(9, 18, 25, 33))))
    assert states(core, HEAD) == [(5, False), (9, False)], "others had to go on the way"


def test_where_nobody_said_so_prompts_share_a_state_from_the_third_on() -> None:
    core = hybrid()
    assert found(core, make_request("first", HEAD[:20] + MORE, 4)) == 0
    assert found(core, make_request("second", HEAD[:20] + LESS, 4)) == 0, "it leaves a state there"
    assert found(core, make_request("third", HEAD[:20] + OTHER, 4)) == 20


def test_keys_without_a_state_behind_them_are_told() -> None:
    core = hybrid()
    found(core, make_request("first", HEAD[:20] + MORE, 4))
    core.submit(make_request("second", HEAD[:20] + LESS, 8))
    while (broke := core.roll().requests[0].broke) is None:
        core.step()
    assert broke == ChainBreak(tokens=0, why="no_state", keys_tokens=20)


def test_of_a_long_prompt_the_last_state_goes_last() -> None:
    core, prompt = hybrid(step_token_budget=16), [*HEAD, *OTHER]
    found(core, make_request("first", prompt, 3))
    assert [index for index, _ in states(core, prompt)] == [3, 7, 11, 15, 18, 19], "one a step"
    assert [index for index, passed in states(core, prompt) if not passed] == [18, 19]


def test_a_turn_takes_the_place_of_the_one_before_it() -> None:
    core, chat, ends = hybrid(), list(HEAD[:20]), list[int]()
    for turn in range(4):
        core.submit(make_request(f"turn {turn}", chat, 6))
        chat += run_to_end(core)[f"turn {turn}"]
        ends.append(max(index for index, passed in states(core, chat) if not passed))
        chat += MORE[:6]
    last = dict(states(core, chat))
    assert [last[end] for end in ends] == [True, True, True, False]


@pytest.mark.parametrize("rest", [LESS, OTHER[:9], HEAD[:9]])
def test_a_state_that_others_parted_from_stays(rest: list[int]) -> None:
    core = hybrid()
    for name, behind in (("a", MORE), ("b", LESS), ("c", OTHER)):
        found(core, make_request(name, HEAD[:20] + behind, 4))
    assert found(core, make_request("d", HEAD[:20] + rest, 9)) >= 20
    assert dict(states(core, HEAD[:20])) == {4: False}


def states(core: EngineCore, prompt: list[int]) -> list[tuple[int, bool]]:
    """Behind which blocks of a prompt states can be found, and whether these go first."""
    table, pool = core.scheduler.new_table(make_request("one", prompt))(), core.scheduler.pool
    hashes = enumerate(table.prefix_hashes([*prompt, 0]))
    blocks = ((index, block) for index, one in hashes for block in pool.find([one], 1))
    return [(index, pool._queue.is_passed(block)) for index, block in blocks]


def test_a_pinned_prompt_keeps_the_state_at_its_end() -> None:
    core = hybrid(num_blocks=40)
    core.submit(make_request("pin", HEAD[:30], 0, shared_tokens=30, pin="pin"))
    run_to_end(core)
    for number in range(12):
        found(core, make_request(f"flood {number}", random_prompt(random.Random(number), 90), 4))
    assert found(core, make_request("chat", HEAD[:30] + MORE, 4, shared_tokens=30)) == 28


def test_what_a_failed_step_has_overwritten_is_computed_again() -> None:
    core, requests = hybrid(step_token_budget=16), [make_request("a", HEAD, 9)]
    requests.append(make_request("b", OTHER, 9))
    alone = {}
    for request in requests:
        other = hybrid(step_token_budget=16)
        other.submit(request)
        alone |= run_to_end(other)
        core.submit(request)
    execute, left = core._runner.execute, [5, 3]

    def failing(plan: StepPlan) -> Sampled:
        sampled = execute(plan)
        left[0] -= 1
        if left[0] == 0 and left[1]:
            left[:] = [5, left[1] - 1]
            raise StepOutOfMemory("no memory")
        return sampled

    core._runner.execute = failing  # type: ignore[method-assign]
    assert run_to_end(core) == alone
    assert left[1] < 3
