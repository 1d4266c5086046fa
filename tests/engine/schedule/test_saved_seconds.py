"""What a hit has saved is told once, by what steps have taught."""

from __future__ import annotations

import random

import pytest

from engine.api import EngineRequest
from engine.schedule.swap_or_recompute import ComputeCost, CopyCost, CostModel
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, simulated_core

SAID = random_prompt(random.Random(1), 40)


async def saved(engine: LocalEngine, request: EngineRequest) -> list[float]:
    return [delta.saved_seconds async for delta in engine.generate(request)]


def taught(core: EngineCore, seconds: float | None) -> EngineCore:
    """A core that has learnt for good what a token of a prompt takes."""
    core.scheduler.pace._prompt_token = seconds
    core.scheduler.pace.observe = lambda *_: None  # type: ignore[method-assign]
    return core


@pytest.mark.parametrize("seconds", [0.5, None])
async def test_it_is_what_the_tokens_that_were_found_would_have_taken(
    seconds: float | None,
) -> None:
    engine = LocalEngine(lambda: taught(simulated_core(), seconds))
    await engine.start()
    assert set(await saved(engine, make_request("first", SAID, 4))) == {0.0}
    again = await saved(engine, make_request("again", SAID, 4))
    assert again == [39 * (seconds or 0.0), 0.0, 0.0, 0.0]
    several = make_request("several", SAID, 3, num_sequences=2)
    assert sum(await saved(engine, several)) == 39 * (seconds or 0.0)
    warming = make_request("warming", [*SAID, 7], 0)
    assert await saved(engine, warming) == [40 * (seconds or 0.0)]
    await engine.close()


async def test_copying_what_was_found_on_the_host_is_taken_off() -> None:
    costs = CostModel(CopyCost(0.0, 0.0), CopyCost(0.0, 0.25), ComputeCost(1.0, 1.0, 0.0, 1, 1.0))
    core = simulated_core(num_blocks=16, num_host_blocks=64, costs=costs)
    engine = LocalEngine(lambda: taught(core, 1.0))
    await engine.start()
    await saved(engine, make_request("first", SAID, 1))
    for seed in range(2, 5):
        flood = random_prompt(random.Random(seed), 50)
        await saved(engine, make_request(f"flood {seed}", flood, 1, tenant="b"))
    again = await saved(engine, make_request("again", SAID, 1))
    copied = core.stats().host_hit_blocks
    found = core.stats().cached_tokens
    assert copied
    assert again == [pytest.approx(found - 0.25 * copied)]
    await engine.close()
