"""An engine that dies gets its streams back; a real one is killed in test_process.py."""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from msgspec import structs

from engine.api import BeamParams, EngineRequest, TokenDelta
from engine.client import EngineUnavailable
from engine.schedule.plan import Sampled, StepPlan
from engine.serve import entrance, remote
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine
from tests.engine.simulation import (
    at_a_models_pace,
    expected_output,
    make_request,
    simulated_core,
)

# A thread dies as a process does: without a word to the other side.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Fate:
    """Builds engines, and decides when one dies and whether the next one comes up."""

    def __init__(self) -> None:
        self.builds = 0
        self.comes_up = True
        self.dies: Callable[[StepPlan], bool] = lambda plan: False

    def build(self) -> EngineCore:
        if not self.comes_up:
            raise SystemExit
        self.builds += 1
        core = at_a_models_pace(simulated_core(num_blocks=256))
        execute = core._runner.execute

        def execute_or_die(plan: StepPlan) -> Sampled:
            if self.dies(plan):
                raise SystemExit
            return execute(plan)

        core._runner.execute = execute_or_die
        return core

    def die_once(self) -> None:
        """In the next step."""

        def dies(plan: StepPlan) -> bool:
            self.dies = lambda plan: False
            return True

        self.dies = dies


@pytest.fixture
def fate() -> Fate:
    return Fate()


@pytest.fixture
async def engine(fate: Fate, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalEngine]:
    monkeypatch.setattr(remote, "_RESTART_DELAYS_SECONDS", (0.01,))
    local = LocalEngine(fate.build, rebuild_seconds=20)
    await local.start()
    yield local
    await local.close()


def request(name: str, max_tokens: int = 60) -> EngineRequest:
    return make_request(name, [5 + int(name)] * 9, max_tokens)


async def collect(engine: LocalEngine, name: str) -> list[TokenDelta]:
    return [delta async for delta in engine.generate(request(name))]


async def engine_ends(engine: LocalEngine, one: EngineRequest) -> str | None:
    """How a request ends."""
    return [delta async for delta in engine.generate(one)][-1].finish_reason


def several(name: str, max_tokens: int = 60, num_sequences: int = 4) -> EngineRequest:
    return structs.replace(request(name, max_tokens), num_sequences=num_sequences)


def by_index(deltas: list[TokenDelta]) -> dict[int, list[TokenDelta]]:
    """The deltas of each sequence, of which only the last may be an end."""
    lines: dict[int, list[TokenDelta]] = {}
    for delta in deltas:
        lines.setdefault(delta.index, []).append(delta)
    for line in lines.values():
        assert [delta.finish_reason for delta in line].count(None) == len(line) - 1
        assert line[-1].finish_reason is not None
    return lines


def tokens(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def test_streams_outlive_any_number_of_deaths_with_progress_between(
    engine: LocalEngine, fate: Fate
) -> None:
    waiting = {str(index) for index in range(12)}
    steps: Counter[str] = Counter()
    results: dict[str, list[TokenDelta]] = {name: [] for name in waiting}

    async def read(name: str) -> None:
        async for delta in engine.generate(request(name, 200)):
            results[name].append(delta)
        waiting.remove(name)

    def dies(plan: StepPlan) -> bool:
        steps.update(sampler.request_id for sampler in plan.samplers)
        if min(steps[name] for name in waiting) < 5:
            return False
        steps.clear()
        return True

    fate.dies = dies
    await asyncio.gather(*map(read, list(waiting)))
    assert fate.builds > 4, "more deaths than a stream survives without a token"
    for name, deltas in results.items():
        assert tokens(deltas) == expected_output(request(name).prompt, 200)
        assert [delta.finish_reason for delta in deltas].count(None) == len(deltas) - 1


async def test_all_sequences_of_a_request_outlive_deaths_and_end_once_each(
    engine: LocalEngine, fate: Fate
) -> None:
    whole = several("8", 140, 6)
    expected = [expected_output(whole.prompt, 140, index) for index in range(6)]
    assert [len(line) for line in expected] == [140, 140, 140, 78, 140, 140]
    steps = 0

    def dies(plan: StepPlan) -> bool:
        nonlocal steps
        steps += 1
        return steps % 25 == 0

    fate.dies = dies
    lines = by_index([delta async for delta in engine.generate(whole)])
    assert fate.builds > 4, "more deaths than a stream survives without a token"
    assert [tokens(lines[index]) for index in range(6)] == expected
    assert (await engine.stats()).blocks_in_use == 0


async def test_the_cache_hit_that_a_reader_was_told_stays_the_same(
    engine: LocalEngine, fate: Fate
) -> None:
    await collect(engine, "1")
    deltas = engine.generate(request("1", 900))
    first = await anext(deltas)
    fate.die_once()
    rest = [delta async for delta in deltas]
    assert fate.builds == 2
    assert {first.cached_tokens} == {delta.cached_tokens for delta in rest} == {8}


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


async def test_an_engine_that_hangs_is_replaced_and_its_streams_go_on(
    fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_RESTART_DELAYS_SECONDS", (0.01,))
    monkeypatch.setattr(remote, "_SHUTDOWN_SECONDS", 0.05)
    hangs = threading.Event()

    def dies(plan: StepPlan) -> bool:
        if fate.builds == 1 and plan.num_tokens == 1:
            hangs.wait(30)
            return True
        return False

    fate.dies = dies
    local = LocalEngine(fate.build, silence_seconds=0.3)
    await local.start()
    deltas = await asyncio.wait_for(collect(local, "1"), 20)
    hangs.set()
    assert tokens(deltas) == expected_output(request("1").prompt, 60)
    assert fate.builds == 2
    await local.close()


async def test_an_engine_with_nothing_to_do_and_one_that_works_are_left_alone(fate: Fate) -> None:
    local = LocalEngine(fate.build, silence_seconds=0.2)
    await local.start()
    await asyncio.sleep(0.5)
    time.sleep(0.4)  # noqa: ASYNC251  it is this loop that says nothing
    deltas = [delta async for delta in local.generate(request("1", 250))]
    assert tokens(deltas) == expected_output(request("1").prompt, 250)
    assert fate.builds == 1
    await local.close()


async def test_streams_end_when_the_engine_stays_away(
    fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_RESTART_DELAYS_SECONDS", (0.01,))
    local = LocalEngine(fate.build, rebuild_seconds=0.05)
    await local.start()
    deltas = local.generate(request("1", 900))
    await anext(deltas)
    fate.comes_up = False
    fate.die_once()
    last = [delta async for delta in deltas][-1]
    assert (last.finish_reason, last.error) == ("error", "the engine did not come back")
    with pytest.raises(EngineUnavailable):
        await anext(local.generate(request("2")))
    fate.comes_up = True
    assert await local.wait_started(1) == 2
    assert tokens(await collect(local, "2")) == expected_output(request("2").prompt, 60)
    await local.close()


@pytest.mark.parametrize("how", ["abort", "leave", "close"])
async def test_streams_can_end_while_the_engine_is_away(
    engine: LocalEngine, fate: Fate, how: str
) -> None:
    deltas = engine.generate(request("1", 900))
    await anext(deltas)
    fate.comes_up = False
    fate.die_once()
    with contextlib.suppress(EngineUnavailable):
        for _ in range(1000):
            _ = engine.info
            await asyncio.sleep(0.005)
    if how == "leave":
        await deltas.aclose()
    else:
        await (engine.abort("1") if how == "abort" else engine.close())
        assert [delta async for delta in deltas][-1].finish_reason == "aborted"
    if how != "close":
        fate.comes_up = True
        await engine.wait_started(1)
        stats = await engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)


async def test_a_sequence_that_ended_before_a_death_is_not_run_again(
    engine: LocalEngine, fate: Fate
) -> None:
    whole = several("8", 140)
    computed: list[list[int]] = [[]]

    def dies(plan: StepPlan) -> bool:
        computed[-1] += [chunk.sequence.index for chunk in plan.chunks]
        if len(computed) == 1 and len(computed[0]) > 450:
            computed.append([])
            return True
        return False

    fate.dies = dies
    lines = by_index([delta async for delta in engine.generate(whole)])
    assert fate.builds == 2
    assert set(computed[0]) == {0, 1, 2, 3}
    assert set(computed[1]) == {0, 1, 2}
    for index in range(4):
        assert tokens(lines[index]) == expected_output(whole.prompt, 140, index)


@pytest.mark.parametrize("before", [True, False])
async def test_one_sequence_can_be_aborted_while_the_engine_dies_or_is_away(
    engine: LocalEngine, fate: Fate, before: bool
) -> None:
    deltas = engine.generate(several("1", 300, 3))
    await anext(deltas)
    fate.comes_up = False
    fate.die_once()
    if before:
        await engine.abort("1", 2)
    with contextlib.suppress(EngineUnavailable):
        for _ in range(1000):
            _ = engine.info
            await asyncio.sleep(0.005)
    await engine.abort("1", 2)
    await engine.abort("1", 9)
    fate.comes_up = True
    lines = by_index([delta async for delta in deltas])
    assert {index: line[-1].finish_reason for index, line in lines.items()} == {
        0: "length",
        1: "length",
        2: "aborted",
    }


async def test_a_request_that_kills_every_engine_ends_each_sequence_once(
    engine: LocalEngine, fate: Fate
) -> None:
    fate.dies = lambda plan: any(chunk.sequence.request_id == "7" for chunk in plan.chunks)
    deltas = [delta async for delta in engine.generate(several("7"))]
    assert [(delta.index, delta.finish_reason) for delta in deltas] == [
        (index, "error") for index in range(4)
    ]


async def test_a_beam_search_whose_engine_dies_is_searched_anew(
    engine: LocalEngine, fate: Fate
) -> None:
    search = structs.replace(request("1"), beam=BeamParams(num_beams=4, num_return=3))
    undisturbed = [delta async for delta in engine.generate(search)]
    steps = 0

    def dies(plan: StepPlan) -> bool:
        nonlocal steps
        steps += 1
        return steps == 30

    fate.dies = dies
    deltas = [delta async for delta in engine.generate(search)]
    anew = next(i for i in range(1, len(deltas)) if deltas[i].searched_tokens == 4)
    assert anew > 1
    assert deltas[anew:] == [structs.replace(delta, cached_tokens=0) for delta in undisturbed]
    assert fate.builds == 2
    assert sorted(by_index(undisturbed)) == [0, 1, 2]


async def test_pins_and_tenants_are_let_go_through_the_client(engine: LocalEngine) -> None:
    warm = make_request("warm", [5] * 9, 0, pin="a/p")
    assert [delta.finish_reason async for delta in engine.generate(warm)] == ["length"]
    assert (await engine.stats()).blocks_pinned == 2
    await engine.unpin("a/p")
    await engine.unpin("unknown")
    stats = await engine.stats()
    assert (stats.blocks_pinned, stats.blocks_cached) == (0, 3)
    await engine.forget_tenant("a")
    stats = await engine.stats()
    assert (stats.blocks_cached, stats.tenants) == (0, {})


async def test_an_engine_whose_steps_all_fail_is_replaced(engine: LocalEngine, fate: Fate) -> None:
    def breaks(plan: StepPlan) -> bool:
        if fate.builds == 1:
            raise RuntimeError("the device is sick")
        return False

    fate.dies = breaks
    ends = [(await collect(engine, name))[-1] for name in "12"]
    assert [delta.error for delta in ends] == ["RuntimeError in the engine"] * 2
    assert tokens(await collect(engine, "3")) == expected_output(request("3").prompt, 60)
    assert fate.builds == 2


async def test_an_engine_that_was_stopped_together_with_the_service_is_left_alone(
    fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_RESTART_DELAYS_SECONDS", (0.01,))
    monkeypatch.setattr(remote, "_SHUTDOWN_SECONDS", 0.01)
    thawed = threading.Event()

    def dies(plan: StepPlan) -> bool:
        if plan.num_tokens == 1:
            thawed.wait(10)
        return False

    fate.dies = dies
    local = LocalEngine(fate.build, silence_seconds=0.3)
    await local.start()
    run = asyncio.create_task(collect(local, "1"))
    await asyncio.sleep(0.15)  # by now it has been asked, and cannot answer
    time.sleep(0.5)  # noqa: ASYNC251  the container is frozen
    thawed.set()
    assert tokens(await run) == expected_output(request("1").prompt, 60)
    await asyncio.sleep(0.1)
    assert fate.builds == 1
    await local.close()


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
