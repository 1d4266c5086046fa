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
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol, TypeGuard

from engine.schedule.scheduler import Scheduler
from engine.sequences.plan import Sampled, StepPlan
from engine.sequences.sequence import Sequence


class Runner(Protocol):
    """What the engine loop needs of a model: steps are computed one after the other."""

    def execute(self, plan: StepPlan) -> Sampled:
        """Compute `plan`; draw a token for each sampler in order, or list its candidates.

        Raises `StepOutOfMemory` if a smaller step may do, `EngineBroken` if none will any more,
        and whatever else may go wrong.
        """
        ...


class Pending(Protocol):
    """A step that has been launched."""

    def result(self) -> Sampled:
        """Wait for what `Runner.execute` would have returned, or raise what that raises."""
        ...


class Launcher(Runner, Protocol):
    """A model that computes steps in order while the host goes on: they are launched ahead."""

    def launch(self, plan: StepPlan) -> Pending:
        """Begin to compute `plan`. But for the result, all of it has been read on return.

        The newest token of a chunk may be one that the step launched before this one draws.
        """
        ...


def is_launcher(runner: Runner) -> TypeGuard[Launcher]:
    """Asked thrice a step: `isinstance` of a protocol takes a hundred times as long."""
    return hasattr(runner, "launch")


@dataclass(frozen=True, slots=True)
class Failure:
    """Steps that are not to be computed any more."""

    error: Exception
    plans: list[StepPlan]
    """All that were planned and have no result, whichever of them has failed."""


@dataclass(slots=True)
class Progress:
    """What has come of the steps in one round."""

    ended: list[Sequence] = field(default_factory=list)
    """What has ended while steps were planned."""
    computed: tuple[StepPlan, Sampled] | None = None
    """The oldest step that was under way; planned before one that has failed, it counts."""
    failure: Failure | None = None


class Steps:
    """Steps that have been started and not been taken over, oldest first: two at most."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._planned: deque[StepPlan] = deque()
        self._started: deque[Callable[[], Sampled]] = deque()
        self._began: deque[float] = deque()
        """When each of them was started."""
        self.plan_seconds = 0.0
        self.compute_seconds = 0.0
        self._last_result = 0.0
        self._awaits_tokens = False
        """Of the newest plan."""

    def __len__(self) -> int:
        return len(self._started)

    def advance(self, runner: Runner) -> Progress:
        """Start the steps that are due, and wait for the oldest.

        Raises nothing that planning or the model raises: it is part of the answer.
        """
        progress = Progress()
        error: Exception | None = None
        try:
            while self._is_due(runner):
                began = perf_counter()
                plan = self._scheduler.plan()
                self.plan_seconds += perf_counter() - began
                progress.ended += plan.failed
                self._awaits_tokens = plan.awaits_tokens
                if not plan.chunks:
                    may_be_empty = self._started or plan.failed or plan.is_preparing
                    assert may_be_empty, "requests, but nothing to compute"
                    break
                self._start(runner, plan)
        except Exception as raised:  # noqa: BLE001
            error = raised
        try:
            if self._started:
                sampled = self._started[0]()
                self._started.popleft()
                plan = self._planned.popleft()
                self._time(plan, may_run_ahead=is_launcher(runner))
                progress.computed = plan, sampled
        except Exception as raised:  # noqa: BLE001
            error = error or raised
        if error is not None:
            progress.failure = Failure(error, list(self._planned))
            self._planned.clear()
            self._started.clear()
            self._began.clear()
        return progress

    def _is_due(self, runner: Runner) -> bool:
        """Whether a step is to be planned now.

        One behind another that is under way, if that may run ahead: only a device knows the tokens
        of the one before it. Beams cannot do without theirs, and a plan may find that it has to
        wait for them.
        """
        if self._scheduler.is_idle:
            return False
        if not self._started:
            return True
        if len(self._started) > 1 or not is_launcher(runner) or self._awaits_tokens:
            return False
        is_search = any(one.request.beam is not None for one in self._planned[0].samplers)
        return not is_search

    def _time(self, plan: StepPlan, *, may_run_ahead: bool) -> None:
        """The oldest step is done: it began when it was started or when the last one ended."""
        now = perf_counter()
        began, last = self._began.popleft(), self._last_result
        self._last_result = now
        pace = self._scheduler.pace
        worth = sum(pace.worth(chunk.start, chunk.count) for chunk in plan.prompts)
        self.compute_seconds += now - max(began, last)
        pace.observe(plan.num_decoding, worth, now - max(began, last))
        if self._scheduler.speculation is not None:
            ran_dry = may_run_ahead and began > last
            self._scheduler.speculation.observe(plan, now - last, ran_dry=ran_dry)

    def _start(self, runner: Runner, plan: StepPlan) -> None:
        self._planned.append(plan)
        self._began.append(perf_counter())
        if is_launcher(runner):
            self._started.append(runner.launch(plan).result)
            self._scheduler.launched(plan)
        else:
            sampled = runner.execute(plan)
            self._started.append(lambda: sampled)
