"""Times how long a preempted request takes to resume; for `bench.engine.recovery`.

Of a long recomputation only some steps are computed, evenly spread; each stands for its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

import msgspec

from bench.common.engines import Sparing, request
from bench.registry import BenchError
from engine.assembly.parts import load_parts
from engine.config import EngineConfig
from engine.model.calibration import calibrate
from engine.model.load import load_model
from engine.run.runner import ModelRunner
from engine.schedule.swap_or_recompute import Policy, Way
from engine.sequences.group import SequenceGroup
from engine.serve.core import EngineCore

OUTPUT: Final = 3
"""Tokens of a context that are generated: one before the request is preempted."""
_WAYS: Final[tuple[Way, ...]] = ("swap", "recompute")
_SPARE_BLOCKS: Final = 4
_MAX_STEPS: Final = 100_000
_REPEATS: Final = 5
_LONG_SECONDS: Final = 2.0
_MOST_STEPS: Final = 12
"""Of a recomputation that are computed, about."""


@dataclass(frozen=True, slots=True)
class Point:
    """One context: how long each way takes, in seconds, and what `auto` chose."""

    length: int
    block_size: int
    lost: int
    seconds: dict[Way, float]
    chosen: Way

    @property
    def auto(self) -> float:
        """What the way takes that was chosen."""
        return self.seconds[self.chosen]

    @property
    def auto_over_best(self) -> float:
        """1 where the choice was right."""
        return self.auto / min(self.seconds.values())


def _timed(core: EngineCore, runner: Sparing, num_steps: int) -> float:
    """Seconds of the next `num_steps` steps, of which the last brings a token."""
    stride = -(-num_steps // _MOST_STEPS)
    total = seconds = 0.0
    counted = 0
    for index in range(num_steps):
        runner.computes = index % stride == stride // 2 or index == num_steps - 1
        start = perf_counter()
        deltas = core.step()
        if runner.computes:
            seconds = perf_counter() - start
            num_alike = min(stride, num_steps - counted)
            total += num_alike * seconds
            counted += num_alike
    if not deltas or deltas[0].error is not None:
        raise BenchError("the request did not resume in the steps that it was to take")
    return total


class Bed:
    """A model with memory for a context in the pool and one in the host tier, calibrated."""

    def __init__(self, config: EngineConfig, length: int) -> None:
        """Raises `BenchError` if the model's contexts are shorter than `length`."""
        model = load_model(config)
        limit = model.weights.config.max_position_embeddings
        if not OUTPUT < length <= limit:
            raise BenchError(f"--lengths: this model has contexts of {OUTPUT + 1} ... {limit}")
        num_blocks = -(-length // config.block_size) + _SPARE_BLOCKS
        memory = num_blocks * model.layout.block_bytes(config.block_size, model.kv_storage)
        del model
        self.parts = load_parts(
            msgspec.structs.replace(config, kv_memory_bytes=memory, host_memory_bytes=memory)
        )
        # Memory is slower when it is touched for the first time, which happens once.
        self.parts.model.memory.zero_()
        self.parts.model.host_memory.zero_()

    def calibration_seconds(self) -> float:
        """How long calibrating takes, when an engine with a host tier starts."""
        config, info = self.parts.config, self.parts.info
        assert config.step_token_budget is not None
        start = perf_counter()
        calibrate(self.parts.model, config.step_token_budget, info.max_context_tokens)
        return perf_counter() - start

    def measure(self, length: int, lost: int) -> Point:
        """Both ways back of a context of `length` tokens, of which the last `lost` are lost."""
        chosen: Way = "recompute" if self._preempted("auto", length, lost)[2] else "swap"
        seconds: dict[Way, float] = {}
        for way in _WAYS:
            seconds[way] = median(self._times(way, length, lost))
        return Point(length, self.parts.config.block_size, lost, seconds, chosen)

    def _times(self, way: Way, length: int, lost: int) -> list[float]:
        times: list[float] = []
        while len(times) < _REPEATS and sum(times) < _LONG_SECONDS:
            core, runner, is_recomputed = self._preempted(way, length, lost)
            budget = self.parts.config.step_token_budget
            assert budget is not None
            (group,) = core.scheduler.lifecycle.live.values()
            missing = group.num_tokens - self._found(core, group) if is_recomputed else 1
            times.append(_timed(core, runner, -(-missing // budget)))
        return times

    @staticmethod
    def _found(core: EngineCore, group: SequenceGroup) -> int:
        """Tokens of a recomputed request that others hold."""
        return core.scheduler.lifecycle.admission(group).num_cached

    def _preempted(self, policy: Policy, length: int, lost: int) -> tuple[EngineCore, Sparing, int]:
        """An engine whose only request has just been preempted, its blocks lost to others.

        And whether it is to be recomputed. What it held was never computed: the time is the same.
        """
        parts = self.parts
        runner = Sparing(ModelRunner(parts.model, parts.costs))
        core = EngineCore(
            msgspec.structs.replace(parts.config, recovery=policy), parts.info, runner, parts.costs
        )
        prompt = [1 + position % 7 for position in range(length - OUTPUT)]
        if lost < length:
            core.submit(request("prefix", prompt[: length - lost], 0, pin="prefix"))
            _next_token(core)
        core.submit(request("context", prompt, OUTPUT))
        _next_token(core)
        core.scheduler.lifecycle.preempt(core.scheduler.running["context"])
        core.scheduler.pool.forget_all(keep=core.scheduler.pins.references)
        return core, runner, core.stats().recomputed


def _next_token(core: EngineCore) -> None:
    """Step until the only request has news."""
    for _ in range(_MAX_STEPS):
        deltas = core.step()
        if deltas:
            break
    else:
        raise BenchError("the request does not go on")
    if deltas[0].error is not None:
        raise BenchError(deltas[0].error)
