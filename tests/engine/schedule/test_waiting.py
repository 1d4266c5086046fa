"""A reader is told how long its request has waited, once for each time that it did."""

from __future__ import annotations

import pytest

from engine.api import TokenDelta
from engine.serve.core import EngineCore
from tests.engine.simulation import make_request, simulated_core


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def deltas_of(core: EngineCore, name: str, count: int) -> list[TokenDelta]:
    """The next ones of a request, so many; every step takes a second."""
    clock = core.scheduler.lifecycle.tiers.clock
    assert isinstance(clock, Clock)
    found: list[TokenDelta] = []
    for _ in range(100):
        clock.now += 1.0
        found += [delta for delta in core.step() if delta.request_id == name]
        core.scheduler.check()
        if len(found) >= count:
            return found
    raise AssertionError("too few")


def waits(deltas: list[TokenDelta]) -> list[float]:
    return [delta.waited_seconds for delta in deltas]


def test_who_waits_for_another_is_told_how_long() -> None:
    core = simulated_core(max_running_requests=1, clock=Clock())
    core.submit(make_request("first", [5] * 8, 4))
    core.submit(make_request("second", [6] * 8, 4))
    assert waits(deltas_of(core, "first", 4)) == [1.0, 0.0, 0.0, 0.0]
    waited, *others = waits(deltas_of(core, "second", 4))
    assert waited == pytest.approx(5.0, abs=1.0)
    assert others == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("recovery", ["swap", "recompute"])
def test_a_preempted_request_is_told_how_long_it_was_away(recovery: str) -> None:
    clock = Clock()
    core = simulated_core(num_blocks=64, num_host_blocks=64, recovery=recovery, clock=clock)
    core.submit(make_request("r", [5] * 8, 20))
    deltas_of(core, "r", 3)
    core.scheduler.lifecycle.preempt(core.scheduler.running["r"])
    clock.now += 7.0
    assert waits(deltas_of(core, "r", 3)) == [8.0, 0.0, 0.0]


def test_lines_of_one_request_tell_of_it_once() -> None:
    core = simulated_core(clock=Clock())
    core.submit(make_request("r", [5] * 8, 4, num_sequences=3))
    assert sum(wait > 0 for wait in waits(deltas_of(core, "r", 12))) == 1
