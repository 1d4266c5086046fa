"""An engine that is killed in the middle of formats goes on with them as if undisturbed."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from msgspec import structs

from engine.api import EngineRequest
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig
from tests.engine.grammar.constrained import GRAMMARS, save
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request


def requests() -> list[EngineRequest]:
    """Two greedy ones, and one of three lines that are drawn."""
    rng = random.Random(4)
    found = [
        make_request(str(number), random_prompt(rng, 10 + number), 60, grammar=grammar)
        for number, grammar in enumerate(GRAMMARS)
    ]
    sampling = structs.replace(found[2].sampling, temperature=1.0, seed=8, presence_penalty=0.5)
    return [*found[:2], structs.replace(found[2], sampling=sampling, num_sequences=3)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kill_after", [1, 9, 25])
async def test_killed_in_the_middle_of_formats_it_finishes_each_as_if_undisturbed(
    tmp_path: Path, kill_after: int
) -> None:
    save(tmp_path)
    engine = ProcessEngine(
        EngineConfig(
            model_path=str(tmp_path),
            device="cpu",
            dtype="float32",
            kv_memory_bytes=8 << 20,
            threads=1,
            cache_dir=str(tmp_path.parent),  # what is measured is kept
        )
    )
    await engine.start()
    seen, killed = 0, False

    async def run(request: EngineRequest, kills: bool) -> list[list[int]]:
        nonlocal seen, killed
        lines: list[list[int]] = [[] for _ in range(request.num_sequences)]
        async for delta in engine.generate(request):
            assert delta.error is None
            lines[delta.index] += delta.token_ids
            seen += len(delta.token_ids)
            if kills and not killed and seen >= kill_after:
                killed = True
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
        return lines

    async def run_all(kills: bool) -> list[list[list[int]]]:
        nonlocal seen
        seen = 0
        runs = asyncio.gather(*(run(request, kills) for request in requests()))
        return await asyncio.wait_for(runs, 120)

    undisturbed = await run_all(kills=False)
    assert await run_all(kills=True) == undisturbed
    assert killed
    await engine.close()
