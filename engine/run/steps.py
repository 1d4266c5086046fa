"""The order of steps: each one after the other, or the next launched before the last is known.

A GPU is told what to do while it is still busy. So that it never waits for the host, step N+1 is
planned and launched before the tokens of step N are read: a sequence that decodes has a place for
a token which only the device knows. If that token turns out to be its last, what step N+1 draws for
it means nothing. On a CPU, planning and computing share the cores, and nothing is gained.

Where a plan has to know the tokens first, it waits for them, and only then: beams are chosen by
their tokens, and what is preempted is laid out by them when it comes back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.schedule.plan import Sampled, StepPlan
from engine.schedule.scheduler import Scheduler


class Runner(Protocol):
    """What the engine loop needs of a model: steps are computed one after the other."""

    def execute(self, plan: StepPlan) -> Sampled:
        """Compute `plan`; draw a token for each sampler in order, or list its candidates."""
        ...


class Pending(Protocol):
    """A step that has been launched."""

    def result(self) -> Sampled:
        """Wait for what `Runner.execute` would have returned."""
        ...


@runtime_checkable
class Launcher(Runner, Protocol):
    """A model that computes steps in order while the host goes on: they are launched ahead."""

    def launch(self, plan: StepPlan) -> Pending:
        """Begin to compute `plan`. But for the result, all of it has been read on return.

        The newest token of a chunk may be one that the step launched before this one draws.
        """
        ...


@runtime_checkable
class Grouping(Protocol):
    """A runner whose attention reads keys once for all sequences that share them."""

    @property
    def num_spared_keys(self) -> int:
        """Keys that a layer has not read again since the start."""
        ...


@dataclass(frozen=True, slots=True)
class _Computed:
    """A step that was computed at once."""

    sampled: Sampled

    def result(self) -> Sampled:
        return self.sampled


class Steps:
    """Steps that have been started and not been taken over, oldest first: two at most."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._started: deque[tuple[StepPlan, Pending]] = deque()

    def __len__(self) -> int:
        return len(self._started)

    def begin(self, runner: Runner) -> None:
        """Start a step if there is none, and one behind it if that may run ahead.

        Raises what the model raises. Starts nothing if requests have failed instead.
        """
        if not self._started:
            plan = self._scheduler.plan()
            assert plan.chunks or self._scheduler.has_failed, "requests, but nothing to compute"
            self._start(runner, plan)
        if len(self._started) == 1 and self._may_run_ahead(runner):
            self._start(runner, self._scheduler.plan())

    def finish(self) -> tuple[StepPlan, Sampled] | None:
        """The oldest step, once it is computed, if there is one. Raises what the model raises."""
        if not self._started:
            return None
        plan, pending = self._started.popleft()
        return plan, pending.result()

    def forget(self) -> None:
        """Give up whatever has been started."""
        self._started.clear()

    def _start(self, runner: Runner, plan: StepPlan) -> None:
        if not plan.chunks:
            return
        if isinstance(runner, Launcher):
            self._started.append((plan, runner.launch(plan)))
            self._scheduler.launched(plan)
        else:
            self._started.append((plan, _Computed(runner.execute(plan))))

    def _may_run_ahead(self, runner: Runner) -> bool:
        """Whether a step may be planned while only a device knows the tokens of the one before it.

        Decided here, but for a plan that finds out that it has to wait.
        """
        if not isinstance(runner, Launcher) or self._scheduler.is_idle:
            return False
        plan, _ = self._started[0]
        is_search = any(sampler.request.beam is not None for sampler in plan.samplers)
        return not (is_search or self._scheduler.must_settle)
