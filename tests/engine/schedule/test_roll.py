"""Which requests there are and which blocks they lean on, as an operator at the wall is told it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec import structs

from engine.api import NOTHING_CACHED, BlockFate, CachePolicy, ChainBreak, RequestState
from engine.blocks.hashing import Extras, block_hashes
from engine.schedule import roll
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine
from tests.engine.clock import Clock
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core

SAID = random_prompt(random.Random(1), 40)
"""Ten full blocks."""
MORE = random_prompt(random.Random(2), 7)


def told(core: EngineCore) -> dict[str, RequestState]:
    return {one.request_id: one for one in core.roll().requests}


def step_until(core: EngineCore, is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        core.step()
    raise AssertionError("it never came to that")


def hashes_of(prompt: list[int]) -> list[bytes]:
    namespaces = make_request("r", prompt).namespaces
    return block_hashes(prompt, 4, namespaces, Extras(b"simulated"))


def is_running(core: EngineCore, name: str) -> Callable[[], bool]:
    return lambda: name in told(core) and told(core)[name].state == "running"


def test_a_second_request_leans_on_the_firsts_blocks() -> None:
    core = simulated_core(step_token_budget=64)
    core.submit(make_request("first", SAID, 20))
    step_until(core, is_running(core, "first"))
    assert told(core)["first"].num_shared == 0
    core.submit(make_request("second", SAID + MORE, 20))
    assert told(core)["second"].state == "waiting"
    step_until(core, is_running(core, "second"))
    first, second = told(core)["first"], told(core)["second"]
    assert first.lines[0][:10] == second.lines[0][:10]
    assert not set(first.lines[0][10:]) & set(second.lines[0][10:])
    assert (first.num_shared, second.num_shared) == (10, 10)
    assert (second.prompt_tokens, second.found_tokens) == (47, 40)
    assert second.num_blocks == len(second.lines[0]) >= 12


def test_a_fork_copies_one_block() -> None:
    core = simulated_core()
    core.submit(make_request("forked", SAID[:10], 20, num_sequences=2))
    step_until(core, is_running(core, "forked"))
    one, other = told(core)["forked"].lines
    assert one == other
    assert len(one) == 3
    step_until(core, lambda: core.stats().copied_blocks > 0)
    one, other = told(core)["forked"].lines
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert told(core)["forked"].num_shared == 0, "what only its own sequences share"


def test_a_preemption_moves_blocks_out_and_back() -> None:
    core = simulated_core(num_blocks=16, num_host_blocks=16, recovery="swap")
    for name in ("one", "other"):
        said = random_prompt(random.Random(name), 24)
        core.submit(make_request(name, said, 24, tenant=name))

    def moved_out() -> list[str]:
        return [name for name, one in told(core).items() if one.state == "preempted"]

    step_until(core, lambda: bool(moved_out()))
    (name,) = moved_out()
    out = told(core)[name]
    assert out.lines[0]
    assert all(16 <= cell < 32 for cell in out.lines[0])
    assert out.num_shared == 0
    step_until(core, is_running(core, name))
    back = told(core)[name]
    assert all(cell < 16 for cell in back.lines[0])
    assert len(back.lines[0]) >= len(out.lines[0])


def test_what_is_to_be_computed_again_is_told_by_what_can_be_found() -> None:
    core = simulated_core(num_blocks=16, recovery="recompute")
    for name in ("one", "other"):
        core.submit(make_request(name, random_prompt(random.Random(name), 24), 24, tenant=name))
    step_until(core, lambda: any(one.state == "preempted" for one in told(core).values()))
    out = next(one for one in told(core).values() if one.state == "preempted")
    assert all(core.scheduler.pool.hashes[cell] is not None for cell in out.lines[0])


def test_a_request_is_as_old_as_it_came_also_when_it_has_ended() -> None:
    clock = Clock()
    core = simulated_core(clock=lambda: clock.now)
    assert told(core) == {}
    core.submit(make_request("old", SAID, 2))
    clock.now += 3
    assert told(core)["old"].age_seconds == 3
    run_to_end(core)
    clock.now += 4
    assert (told(core)["old"].state, told(core)["old"].age_seconds) == ("finished", 7)


def test_an_eviction_is_named() -> None:
    clock = Clock()
    core = simulated_core(num_blocks=24, clock=lambda: clock.now)
    core.submit(make_request("before", SAID, 2))
    run_to_end(core)
    clock.now += 5
    for number in range(4):
        prompt = random_prompt(random.Random(number), 60)
        core.submit(make_request(f"flood {number}", prompt, 2, tenant="bulk"))
        run_to_end(core)
    clock.now += 12
    core.submit(make_request("again", SAID, 8))
    step_until(core, is_running(core, "again"))
    clock.now += 1
    broke = told(core)["again"].broke
    assert broke is not None
    assert (broke.why, broke.evicted_by, broke.evicted_for) == ("evicted", "pressure", "bulk")
    assert broke.seconds_ago == 13
    assert broke.tokens == told(core)["again"].found_tokens
    assert {fate.by for fate in core.scheduler.tiers.fates(hashes_of(SAID))} == {""}


def test_what_was_lost_before_all_that_is_remembered_is_told_apart_from_what_is_new() -> None:
    clock = Clock()
    core = simulated_core(num_blocks=24, clock=lambda: clock.now)
    core.submit(make_request("before", SAID, 2))
    run_to_end(core)
    for number in range(20):
        clock.now += 1
        prompt = random_prompt(random.Random(number), 60)
        core.submit(make_request(f"flood {number}", prompt, 2, tenant="bulk"))
        run_to_end(core)
    told_to_tenants = core.scheduler.tiers.fates(hashes_of(SAID))
    assert told_to_tenants == [BlockFate("lost_long_ago")] * 10, "they are not told of a time"
    broke = {}
    asked = [("again", SAID, "a"), ("new", MORE + SAID, "a"), ("neighbour", SAID, "b")]
    for name, prompt, tenant in asked:
        core.submit(make_request(name, prompt, 8, tenant=tenant))
        step_until(core, is_running(core, name))
        broke[name] = told(core)[name].broke
        run_to_end(core)
    again = broke["again"]
    assert again is not None
    assert (again.why, again.tokens, again.evicted_by) == ("lost_long_ago", 0, None)
    assert 0 < again.seconds_ago < 20
    assert broke["new"] == broke["neighbour"] == ChainBreak(tokens=0, why="never_seen")


@pytest.mark.parametrize(
    ("prompt", "cache", "expected"),
    [
        (SAID, CachePolicy(), ChainBreak(tokens=39, why="prompt_ends")),
        (MORE + SAID, CachePolicy(), ChainBreak(tokens=0, why="never_seen")),
        (SAID[:3], CachePolicy(), ChainBreak(tokens=2, why="prompt_ends")),
        (MORE[:3], CachePolicy(), ChainBreak(tokens=0, why="prefix_shorter_than_block")),
        (SAID, NOTHING_CACHED, ChainBreak(tokens=0, why="not_asked")),
    ],
)
def test_why_a_chain_ends_where_it_does(
    prompt: list[int], cache: CachePolicy, expected: ChainBreak
) -> None:
    core = simulated_core()
    core.submit(make_request("before", SAID, 2))
    run_to_end(core)
    core.submit(make_request("now", prompt, 8, cache=cache))
    assert told(core)["now"].broke is None, "it has not begun"
    step_until(core, is_running(core, "now"))
    assert told(core)["now"].broke == expected


def test_a_block_that_is_there_but_not_used_is_told_so() -> None:
    core = simulated_core()
    core.submit(make_request("before", SAID, 2))
    run_to_end(core)
    scored = make_request("scored", SAID, 8)
    sampling = structs.replace(scored.sampling, prompt_logprobs=0)
    core.submit(structs.replace(scored, sampling=sampling))
    step_until(core, is_running(core, "scored"))
    assert told(core)["scored"].broke == ChainBreak(tokens=0, why="not_used")


def test_what_has_ended_is_told_while_somebody_asks() -> None:
    clock = Clock()
    core = simulated_core(clock=lambda: clock.now)
    core.submit(make_request("unseen", SAID, 2))
    run_to_end(core)
    assert told(core) == {}
    core.submit(make_request("seen", SAID + MORE, 2))
    run_to_end(core)
    seen = told(core)["seen"]
    assert (seen.state, seen.found_tokens, seen.num_blocks) == ("finished", 40, 12)
    pool = core.scheduler.pool
    assert seen.lines == [pool.find([pool.hash_of(cell) or b"" for cell in seen.lines[0]])]
    assert len(seen.lines[0]) == 12
    core.forget_tenant("a")
    assert told(core)["seen"].lines == [[]], "nothing of it can be found any more"
    clock.now += 11
    core.submit(make_request("unseen again", SAID, 2))
    run_to_end(core)
    assert told(core) == {}


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "_MOST_LIVE", 4)
    monkeypatch.setattr(roll, "_CELLS", 12)
    core = simulated_core(max_running_requests=2, step_token_budget=64)
    told(core)
    for number in range(40):
        core.submit(make_request(f"r{number}", SAID, 2))
    core.step()
    few = core.roll().requests
    assert [one.request_id for one in few] == ["r0", "r1", "r2", "r3"]
    assert [len(one.lines[0]) for one in few[:2]] == [3, 3]
    assert all(len(one.lines[0]) <= 3 for one in few[2:])
    assert few[0].num_blocks >= 10
    run_to_end(core)
    ended = core.roll().requests
    assert [one.request_id for one in ended] == [f"r{number}" for number in range(39, 7, -1)]


def test_those_that_run_come_before_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "_MOST_LIVE", 2)
    core = simulated_core(max_running_requests=1, step_token_budget=64)
    for number in range(3):
        core.submit(make_request(f"r{number}", SAID, 8, priority=number))
    core.step()
    assert list(told(core)) == ["r0", "r2"]
    assert told(core)["r2"].state == "running"


def test_a_cell_is_told_by_its_places_in_chains() -> None:
    clock = Clock()
    core = simulated_core(clock=lambda: clock.now, num_blocks=24, num_host_blocks=24)
    for name, prompt in (("c1", SAID), ("c2", SAID[:24] + MORE)):
        core.submit(make_request(name, prompt, 1, conversation=name))
        run_to_end(core)
        clock.now += 5.0
    told(core)  # from now on ended requests are remembered
    core.submit(make_request("r", SAID[:24] + MORE, 1))
    run_to_end(core)
    (line,) = told(core)["r"].lines
    second, first = core.roll(line[2]).places
    assert (second.conversation, second.number, second.blocks) == ("c2", 3, 8)
    assert (second.age_seconds, second.idle_seconds) == (5.0, 5.0)
    assert (second.requests, second.hits, second.tenant) == (1, 1, "a")
    assert (first.conversation, first.number, first.blocks) == ("c1", 3, 10)
    assert (first.age_seconds, first.hits) == (10.0, 0)
    assert [one.conversation for one in core.roll(line[6]).places] == ["c2"]
    pool = core.scheduler.pool
    free = next(block for block in range(pool.num_blocks) if not (pool.hashes[block] is not None))
    assert core.roll(free).places == core.roll(10**6).places == core.roll().places == []
    # What is moved to host memory has its places there.
    core.submit(make_request("large", random_prompt(random.Random(3), 92), 1))
    run_to_end(core)
    slots = [core.roll(pool.num_blocks + slot).places for slot in range(24)]
    numbers = {one.number for places in slots for one in places if one.conversation == "c2"}
    assert numbers == set(range(1, 9))


async def test_it_crosses_the_border() -> None:
    engine = LocalEngine(simulated_core)
    await engine.start()
    assert (await engine.roll()).requests == []
    async for _ in engine.generate(make_request("r", SAID, 2)):
        pass
    answer = await engine.roll()
    assert [one.state for one in answer.requests] == ["finished"]
    assert answer.replicas == 1
    await engine.close()
