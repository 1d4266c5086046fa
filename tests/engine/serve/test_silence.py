"""An engine that says nothing, or only fails, is replaced; one that has nothing to say is not."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from engine.sequences.plan import StepPlan
from engine.serve import supervisor as remote
from engine.serve.local import LocalEngine
from tests.engine.serve.conftest import Fate, collect, request, tokens
from tests.engine.simulated_model import expected_output

# A thread dies as a process does: without a word to the other side.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


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


async def test_an_engine_with_nothing_to_do_and_one_that_works_are_left_alone(fate: Fate) -> None:
    local = LocalEngine(fate.build, silence_seconds=0.5)
    await local.start()
    await asyncio.sleep(1.2)
    time.sleep(1.0)  # noqa: ASYNC251  it is this loop that says nothing
    deltas = [delta async for delta in local.generate(request("1", 250))]
    assert tokens(deltas) == expected_output(request("1").prompt, 250)
    assert fate.builds == 1
    await local.close()


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
