"""An engine that dies gets its streams back; a real one is killed in test_process.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from msgspec import structs

from engine.api import BeamParams, EngineUnavailable, PromptLogprobs, TokenDelta
from engine.sequences.plan import StepPlan
from engine.serve import supervisor as remote
from engine.serve.local import LocalEngine
from tests.engine.serve.conftest import Fate, by_index, collect, request, several, tokens
from tests.engine.simulated_model import expected_output, expected_scores, random_prompt
from tests.engine.simulation import make_request

# A thread dies as a process does: without a word to the other side.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


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


async def test_a_prompt_is_scored_once_through_deaths(engine: LocalEngine, fate: Fate) -> None:
    asked = make_request("r", random_prompt(random.Random(1), 200), 20)
    sampling = structs.replace(asked.sampling, prompt_logprobs=0)
    deltas = engine.generate(structs.replace(asked, sampling=sampling))
    scores: list[PromptLogprobs] = []
    output: list[int] = []
    has_died = False
    async for delta in deltas:
        scores += delta.prompt_logprobs
        output += delta.token_ids
        if not has_died and len(scores) > 60:
            has_died = True
            fate.die_once()
    assert fate.builds == 2
    assert scores == expected_scores(asked.prompt)
    assert output == expected_output(asked.prompt, 20)


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


async def test_a_reader_is_told_once_how_long_its_engine_was_away(
    engine: LocalEngine, fate: Fate
) -> None:
    deltas = engine.generate(request("1", 400))
    assert (await anext(deltas)).rebuilt_seconds == 0.0
    fate.die_once()
    rest = [delta.rebuilt_seconds async for delta in deltas]
    assert sum(one > 0 for one in rest) == 1


async def test_a_request_that_comes_as_the_engine_dies_waits_for_the_next_one(
    engine: LocalEngine, fate: Fate
) -> None:
    first = engine.generate(request("1", 900))
    await anext(first)
    fate.comes_up = False
    fate.die_once()
    with contextlib.suppress(EngineUnavailable):
        while engine.info:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    late = asyncio.create_task(collect(engine, "2"))
    await asyncio.sleep(0.02)
    assert not late.done()
    fate.comes_up = True
    assert tokens(await late) == expected_output(request("2").prompt, 60)
    await first.aclose()


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
    assert [structs.replace(delta, rebuilt_seconds=0.0) for delta in deltas[anew:]] == [
        structs.replace(delta, cached_tokens=0) for delta in undisturbed
    ]
    assert fate.builds == 2
    assert sorted(by_index(undisturbed)) == [0, 1, 2]
