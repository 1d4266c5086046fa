"""A request that kills its engine ends, alone: whoever may be it is tried one at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from engine.api import EngineRequest
from engine.sequences.plan import StepPlan
from engine.serve import entrance
from engine.serve import supervisor as remote
from engine.serve.local import LocalEngine
from tests.engine.serve.conftest import Fate, collect, request, several, tokens
from tests.engine.simulated_model import expected_output

# A thread dies as a process does: without a word to the other side.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


async def engine_ends(engine: LocalEngine, one: EngineRequest) -> str | None:
    """How a request ends."""
    return [delta async for delta in engine.generate(one)][-1].finish_reason


async def test_a_request_that_kills_every_engine_ends_with_an_error_and_later_ones_are_served(
    engine: LocalEngine, fate: Fate
) -> None:
    fate.dies = lambda plan: any(chunk.sequence.request_id == "7" for chunk in plan.chunks)
    deltas = await collect(engine, "7")
    assert [delta.finish_reason for delta in deltas] == ["error"]
    assert "died 2 times" in (deltas[0].error or "")
    await engine.wait_started(2)
    assert fate.builds == 3
    assert tokens(await collect(engine, "1")) == expected_output(request("1").prompt, 60)


async def test_a_request_that_kills_every_engine_ends_each_sequence_once(
    engine: LocalEngine, fate: Fate
) -> None:
    fate.dies = lambda plan: any(chunk.sequence.request_id == "7" for chunk in plan.chunks)
    deltas = [delta async for delta in engine.generate(several("7"))]
    assert [(delta.index, delta.finish_reason) for delta in deltas] == [
        (index, "error") for index in range(4)
    ]


async def test_a_request_that_kills_engines_ends_alone(engine: LocalEngine, fate: Fate) -> None:
    """Whoever is beside it, before it or behind it goes on as if undisturbed."""
    deaths: list[set[str]] = []

    def dies(plan: StepPlan) -> bool:
        names = {chunk.sequence.request_id for chunk in plan.chunks}
        if "7" not in names:
            return False
        deaths.append(names)
        return True

    fate.dies = dies
    before = [asyncio.create_task(collect(engine, str(index))) for index in range(4)]
    await asyncio.sleep(0.02)
    killer = asyncio.create_task(collect(engine, "7"))
    await engine.wait_started(1)
    behind = [asyncio.create_task(collect(engine, str(index))) for index in range(10, 16)]
    assert [delta.finish_reason for delta in await killer] == ["error"]
    assert len(deaths) == 3
    assert deaths[2] == {"7"}, "only then is it known for certain"
    for name, run in zip([*range(4), *range(10, 16)], [*before, *behind], strict=True):
        assert tokens(await run) == expected_output(request(str(name)).prompt, 60)
    assert fate.builds == 4


@pytest.mark.parametrize("kills_after", [1, 2, 4])
async def test_a_request_that_shows_tokens_before_it_kills_takes_nobody_along(
    engine: LocalEngine, fate: Fate, kills_after: int
) -> None:
    """It kills each engine in the step behind so many tokens from it."""
    steps: Counter[int] = Counter()

    def dies(plan: StepPlan) -> bool:
        if "7" not in {chunk.sequence.request_id for chunk in plan.chunks}:
            return False
        steps[fate.builds] += 1
        return steps[fate.builds] > kills_after

    fate.dies = dies
    killer = asyncio.create_task(engine_ends(engine, request("7", 20)))
    others = [asyncio.create_task(collect(engine, str(index))) for index in range(4)]
    end = await asyncio.wait_for(killer, 30)
    if kills_after == 1:
        assert (end, fate.builds) == ("error", 2), "it was alone in the second"
    for index, run in enumerate(others):
        assert tokens(await run) == expected_output(request(str(index)).prompt, 60)


async def test_after_a_death_requests_come_in_as_others_have_shown_to_be_harmless(
    engine: LocalEngine, fate: Fate
) -> None:
    known: set[str] = set()

    def dies(plan: StepPlan) -> bool:
        names = {chunk.sequence.request_id for chunk in plan.chunks}
        if fate.builds == 1:
            return len(names) == 6
        unknown = {
            chunk.sequence.request_id
            for chunk in plan.chunks
            if chunk.sequence.request_id not in known
        }
        assert len(unknown) <= 1, "two that may each be a killer"
        known.update(chunk.sequence.request_id for chunk in plan.chunks if chunk.samplers)
        return False

    fate.dies = dies
    runs = await asyncio.gather(*(collect(engine, str(index)) for index in range(6)))
    assert fate.builds == 2
    assert known == set("012345")
    for index, deltas in enumerate(runs):
        assert tokens(deltas) == expected_output(request(str(index)).prompt, 60)
    await collect(engine, "8")
    assert not engine._entrance.is_careful


@pytest.mark.parametrize("leaves", [True, False])
async def test_who_waits_for_others_to_be_harmless_can_leave(
    engine: LocalEngine, fate: Fate, leaves: bool
) -> None:
    gate = threading.Event()

    def dies(plan: StepPlan) -> bool:
        if fate.builds == 2:
            gate.wait(10)
        return fate.builds == 1 and len(plan.chunks) == 3

    fate.dies = dies
    runs = [asyncio.create_task(collect(engine, str(index))) for index in range(3)]
    await engine.wait_started(1)
    for index in (1, 2):
        if leaves:
            runs[index].cancel()
        else:
            await engine.abort(str(index))
    ends = await asyncio.gather(*runs[1:], return_exceptions=True)
    gate.set()
    for end in ends:
        assert isinstance(end, asyncio.CancelledError if leaves else list)
        assert leaves or [delta.finish_reason for delta in end][-1] == "aborted"
    assert tokens(await runs[0]) == expected_output(request("0").prompt, 60)
    stats = await engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert (await collect(engine, "4"))[-1].finish_reason == "length"


async def test_nobody_waits_long_for_a_long_prompt_to_be_harmless(
    engine: LocalEngine, fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (entrance, remote):
        monkeypatch.setattr(module, "TRIAL_SECONDS", 0.05)
    gate = threading.Event()

    def dies(plan: StepPlan) -> bool:
        names = {chunk.sequence.request_id for chunk in plan.chunks}
        if fate.builds == 2 and names == {"0"}:
            gate.wait(0.2)  # its step takes long, and nothing is heard of it
        return fate.builds == 1 and len(names) == 2

    fate.dies = dies
    runs = [asyncio.create_task(collect(engine, str(index))) for index in range(2)]
    await engine.wait_started(1)
    await asyncio.sleep(0.1)
    stats = await engine.stats()
    assert stats.running + stats.waiting == 2
    for index, deltas in enumerate(await asyncio.gather(*runs)):
        assert tokens(deltas) == expected_output(request(str(index)).prompt, 60)


async def test_nobody_is_let_in_behind_a_stream_that_was_left_and_may_still_kill(
    engine: LocalEngine, fate: Fate
) -> None:
    gate, holds = threading.Event(), threading.Event()

    def dies(plan: StepPlan) -> bool:
        if "0" not in {chunk.sequence.request_id for chunk in plan.chunks}:
            return False
        if fate.builds == 2:
            holds.set()
            gate.wait(10)
        return fate.builds < 3

    fate.dies = dies
    left, other = (asyncio.create_task(collect(engine, name)) for name in "01")
    await asyncio.to_thread(holds.wait)
    left.cancel()
    await asyncio.sleep(0.05)
    gate.set()
    deltas = await other
    assert deltas[-1].finish_reason == "length"
    assert tokens(deltas) == expected_output(request("1").prompt, 60)


async def test_a_stream_that_was_left_is_not_waited_for_once_the_engine_has_heard_of_it(
    engine: LocalEngine, fate: Fate
) -> None:
    gate, holds = threading.Event(), threading.Event()

    def dies(plan: StepPlan) -> bool:
        if "0" in {chunk.sequence.request_id for chunk in plan.chunks} and fate.builds == 2:
            holds.set()
            gate.wait(10)
        return fate.builds == 1

    fate.dies = dies
    left, other = (asyncio.create_task(collect(engine, name)) for name in "01")
    await asyncio.to_thread(holds.wait)
    left.cancel()
    await asyncio.sleep(0.05)
    fate.dies = lambda plan: False
    gate.set()
    deltas = await asyncio.wait_for(other, 5)  # half of a trial
    assert tokens(deltas) == expected_output(request("1").prompt, 60)
