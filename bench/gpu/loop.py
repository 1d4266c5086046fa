"""Drives an engine's own loop over random requests, and times its steps on both sides."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter
from typing import Final

from bench.common import engines
from bench.registry import BenchError
from engine.api import NOTHING_CACHED, CachePolicy, EngineRequest
from engine.assembly.parts import Parts, make_graphs, make_pieces
from engine.blocks.hashing import KEY_BYTES
from engine.run.runner import AheadRunner, LaunchedStep, ModelRunner
from engine.run.stopwatch import Stopwatch
from engine.sequences.plan import StepPlan
from engine.serve.core import EngineCore

_WARM_UP_STEPS: Final = 8
_MOST_PREFILL_STEPS: Final = 10_000
_TURNS: Final = 5


@dataclass(frozen=True, slots=True)
class Mode:
    """How an engine runs; all of it on is what serves."""

    is_recorded: bool = True
    runs_ahead: bool = True
    prefix_grouping: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """A batch that decodes; the first `shared` tokens of its prompts are their tenant's."""

    batch: int
    length: int
    steps: int
    shared: int = 0
    tenants: int = 1


@dataclass(frozen=True, slots=True)
class Timing:
    """Of the steps of a case, in the middle of which sequences were `context` tokens long."""

    step: float
    """Seconds from one step to the next."""
    gap: float
    """The share of them in which the device had no step to compute."""
    context: float


class _TimedRunner(ModelRunner):
    """Remembers when the device came to the begin and the end of each step."""

    watches: list[Stopwatch]

    def _launch(self, plan: StepPlan) -> LaunchedStep:
        watch = Stopwatch(self._model.device)
        watch.mark()
        step = super()._launch(plan)
        watch.mark()
        self.watches.append(watch)
        return step


class _TimedAheadRunner(_TimedRunner, AheadRunner):
    """The same for steps that are launched ahead."""


class Loop:
    """One loaded model, in an engine of its own for each case."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        is_gpu = parts.model.device.type == "cuda"
        self._graphs = make_graphs(parts) if is_gpu else None
        self._pieces = make_pieces(parts) if is_gpu else None
        if self._graphs is not None:
            self._graphs.record()
        if self._pieces is not None:
            self._pieces.record()
        self._rng = random.Random(0)

    @property
    def other_modes(self) -> dict[str, Mode]:
        """The other ways in which this device can run, by their names."""
        eager = {"eager": Mode(is_recorded=False)} if self._graphs is not None else {}
        return eager | {"in_turn": Mode(runs_ahead=False)}

    def prefill(self, length: int, tokens: int) -> tuple[int, float]:
        """Compute prompts of `length` tokens, about `tokens` together.

        Returns how many tokens they were, and the seconds.
        """
        count = max(1, tokens // length)
        core, _ = self._core(Mode())
        seconds = 0.0
        for _ in range(2):  # the first time compiles
            case = Case(count, length, 1)
            for index in range(count):
                core.submit(self._request(case, index, [], 1))
            start = perf_counter()
            for _ in range(_MOST_PREFILL_STEPS):
                if core.is_idle:
                    break
                core.step()
            seconds = perf_counter() - start
        return count * length, seconds

    def turn(self, cached: int, new: int) -> float:
        """Seconds to the first token behind `new` tokens, which follow `cached` ones, alone."""
        core, _ = self._core(Mode())
        history = self._tokens(cached)
        self._first_token(core, self._request(Case(1, cached, 1), 0, history, 1))
        turns = [Case(1, cached + new, 1)] * (1 + _TURNS)  # the first one may compile
        requests = [self._request(turn, 0, history, 1) for turn in turns]
        return median([self._first_token(core, request) for request in requests][1:])

    def _first_token(self, core: EngineCore, request: EngineRequest) -> float:
        """Seconds to the first token of a request for a single one."""
        seconds = 0.0
        start = perf_counter()
        core.submit(request)
        for _ in range(_MOST_PREFILL_STEPS):
            if any(delta.token_ids for delta in core.step()):
                seconds = perf_counter() - start
            if core.is_idle:
                return seconds
        raise BenchError("a prompt is never done")

    def decode(self, case: Case, mode: Mode) -> Timing:
        """Bring the whole batch to decode, and time its steps.

        Raises `BenchError` if there is no room for all of it at once.
        """
        core, runner = self._core(mode)
        heads = [self._tokens(case.shared) for _ in range(case.tenants)]
        budget = self._parts.config.step_token_budget or 1
        most_steps = 2 * (case.batch * case.length // budget + case.batch + 2)
        output = most_steps + _WARM_UP_STEPS + case.steps
        for index in range(case.batch):
            core.submit(self._request(case, index, heads[index % case.tenants], output))
        begun: set[str] = set()
        for _ in range(most_steps):
            begun.update(delta.request_id for delta in core.step() if delta.token_ids)
            if len(begun) == case.batch:
                break
        for _ in range(_WARM_UP_STEPS):
            core.step()
        if len(core.scheduler.running) < case.batch or core.stats().preemptions:
            raise BenchError(f"there is no room for {case.batch} sequences at once")
        runner.watches.clear()
        start = perf_counter()
        for _ in range(case.steps):
            core.step()
        seconds = perf_counter() - start
        groups = core.scheduler.running.values()
        context = mean(group.sequences[0].num_tokens for group in groups) - case.steps / 2
        for name in list(core.scheduler.running):
            core.abort(name)
        if not core.is_idle:
            core.step()  # what was launched ahead
        busy = sum(watch.seconds()[0] for watch in runner.watches[-case.steps :])
        return Timing(seconds / case.steps, max(0.0, 1 - busy / seconds), context)

    def _core(self, mode: Mode) -> tuple[EngineCore, _TimedRunner]:
        parts = self._parts
        kind = _TimedAheadRunner if mode.runs_ahead else _TimedRunner
        graphs = self._graphs if mode.is_recorded else None
        pieces = self._pieces if mode.is_recorded else None
        runner = kind(parts.model, None, mode.prefix_grouping, graphs, pieces)
        runner.watches = []
        return EngineCore(parts.config, parts.info, runner, parts.costs), runner

    def _request(self, case: Case, index: int, head: list[int], output: int) -> EngineRequest:
        tenant = f"t{index % case.tenants}"
        return engines.request(
            str(index),
            head + self._tokens(case.length - len(head)),
            output,
            tenant=tenant,
            key=tenant.encode().ljust(KEY_BYTES, b"."),
            cache=CachePolicy() if head else NOTHING_CACHED,
        )

    def _tokens(self, count: int) -> list[int]:
        return self._rng.choices(range(3, self._parts.info.vocab_size), k=count)
