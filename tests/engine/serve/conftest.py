"""Engines in a thread of this process, which die, hang or fail when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from msgspec import structs

from engine.api import EngineRequest, TokenDelta
from engine.sequences.plan import Sampled, StepPlan
from engine.serve import supervisor as remote
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine
from tests.engine.clock import at_a_models_pace
from tests.engine.simulation import make_request, simulated_core


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
