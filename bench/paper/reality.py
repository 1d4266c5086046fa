"""One point for real: the small model computes what elsewhere is simulated, on this machine.

Partywall runs its own engine in this process. Orca (Oracle) has the same model compute its plans:
a contiguous range of slots is, to paged attention, a block table that counts upwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers.utils import logging as transformers_logging

from bench.paper.baselines.orca import Orca, Running, reserve_oracle
from bench.paper.baselines.server import Server, Step, TracedRequest
from bench.paper.cost_model import Fit, StepShape, fit
from bench.paper.lengths import poisson_arrivals, sharegpt
from bench.paper.simulation import simulate
from bench.paper.systems import ORACLE, PARTYWALL, Paged
from engine.batch.batch import pack
from engine.config import EngineConfig
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.run.runner import ModelRunner

BLOCK_SIZE = 8
"""Small, as the lengths are."""
MAX_RUNNING = 64
_VOCABULARY = 40_000
_WARM_UP_STEPS = 8
_STEPS_PER_CALIBRATION = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """The reduced point: ShareGPT's lengths divided, as the model and the machine are smaller."""

    num_slots: int = 256
    divisor: int = 12
    num_requests: int = 20
    num_calibration_requests: int = 12
    calibration_steps: int = 40
    """Before the runs; there are more in between."""
    overload: float = 6.0
    """The request rate over what Orca (Oracle) can serve: a burst, so that the order must show."""


@dataclass(frozen=True, slots=True)
class Reality:
    """Mean seconds a token of each system, measured and simulated, at the same rate."""

    fit: Fit
    rate: float
    num_requests: int
    measured: dict[str, float]
    simulated: dict[str, float]

    @property
    def error(self) -> float:
        """The largest |simulated - measured| / measured."""
        return max(
            abs(self.simulated[system] - measured) / measured
            for system, measured in self.measured.items()
        )

    @property
    def agrees_in_order(self) -> bool:
        """Whether both say that the same system answers sooner."""
        return sorted(self.measured, key=self.measured.__getitem__) == sorted(
            self.simulated, key=self.simulated.__getitem__
        )


class ComputedOrca(Orca):
    """Orca (Oracle) whose steps a real model computes."""

    def __init__(self, model: PagedModel, num_slots: int, max_running: int) -> None:
        super().__init__(num_slots, _whole_blocks, max_running)
        self._model = model
        self._known: dict[int, list[int]] = {}

    @torch.inference_mode()
    def step(self) -> Step:
        """See `Server`."""
        admitted = self.start()
        for entry in admitted:
            self._known[entry.number] = list(entry.request.prompt)
        fresh = {entry.number for entry in admitted}
        parts = [self._part(entry, entry.number in fresh) for entry in self.running]
        rows = [sum(part[2] for part in parts[: index + 1]) - 1 for index in range(len(parts))]
        batch = pack(parts, rows, BLOCK_SIZE, self._model.device)
        drawn = self._model.forward(batch).argmax(dim=-1).tolist()
        for entry, token in zip(self.running, drawn, strict=True):
            self._known[entry.number].append(token)
        step = self.finish(admitted)
        for number in step.finished:
            del self._known[number]
        return step

    def _part(self, entry: Running, is_fresh: bool) -> tuple[list[int], int, int, list[int]]:
        known = self._known[entry.number]
        first = entry.start // BLOCK_SIZE
        blocks = list(range(first, first - (-len(known) // BLOCK_SIZE)))
        return (known, 0, len(known), blocks) if is_fresh else (known, len(known) - 1, 1, blocks)


class Timed:
    """A `Server` that computes for real, and a `Cost` that says how long its last step took.

    Counted is this process's time on one thread: whatever else the machine does is no part of it.
    `beside` is called every few steps, outside of the measured time.
    """

    def __init__(self, server: Server, beside: Callable[[], None] = lambda: None) -> None:
        self.shapes: list[StepShape] = []
        self.times: list[float] = []
        self._server = server
        self._beside = beside

    @property
    def is_idle(self) -> bool:
        """See `Server`."""
        return self._server.is_idle

    def submit(self, request: TracedRequest) -> None:
        """See `Server`."""
        self._server.submit(request)

    def step(self) -> Step:
        """See `Server`."""
        begin = time.process_time()
        step = self._server.step()
        self.times.append(time.process_time() - begin)
        self.shapes.append(step.shape)
        if len(self.times) % _STEPS_PER_CALIBRATION == 0:
            self._beside()
        return step

    def seconds(self, shape: StepShape) -> float:
        """See `Cost`."""
        assert shape is self.shapes[-1]
        return self.times[-1]


class Calibration:
    """Steps of all sizes on a server of its own, one at a time: again and again requests come,
    faster and faster, and then none.
    """

    def __init__(self, server: Server, scale: Scale) -> None:
        self._timed = Timed(server)
        self._scale = scale
        self._waiting: list[TracedRequest] = []
        self._clock = self._rounds = self._number = 0

    def step(self) -> None:
        """Compute and measure the next one."""
        if self._timed.is_idle and not self._waiting:
            self._begin_round()
        while self._waiting and (self._waiting[0].arrival <= self._clock or self._timed.is_idle):
            self._timed.submit(self._waiting.pop(0))
        self._timed.step()
        self._clock += 1

    def fit(self) -> Fit:
        """The cost of a step, from all that have been computed but the first few."""
        steps = slice(_WARM_UP_STEPS, None)
        return fit(self._timed.shapes[steps], self._timed.times[steps])

    def _begin_round(self) -> None:
        self._rounds += 1
        self._clock = 0
        count = self._scale.num_calibration_requests
        requests = _requests(self._scale, count, seed=self._rounds)
        spread = sum(len(output) for _, output in requests) / count
        for place, request in enumerate(requests):
            arrival = spread * (place / count) ** 0.5
            self._waiting.append(TracedRequest(self._number, arrival, *request))
            self._number += 1


def load_small_model(path: str, block_size: int) -> PagedModel:
    """The weights in the folder `path`, on one thread and without a word; the caller allocates the
    KV memory.
    """
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    return load_model(EngineConfig(model_path=path, block_size=block_size))


def measure_reality(model_path: str, scale: Scale) -> Reality:
    """Choose a rate that Orca (Oracle) cannot sustain, run both systems at it, and simulate them.

    The cost is fitted to steps of other requests, which are computed in between: a machine that is
    faster now than a minute later is so for both.
    """
    model = load_small_model(model_path, BLOCK_SIZE)
    # The same weights, over a KV memory of their own.
    models = [model, PagedModel(model.weights, BLOCK_SIZE)]
    for paged_model in models:
        paged_model.allocate(scale.num_slots // BLOCK_SIZE)
    calibration = Calibration(_servers(scale, models[1])[PARTYWALL], scale)
    for _ in range(scale.calibration_steps):
        calibration.step()
    rough = calibration.fit().cost
    at_once = _trace(scale, rate=math.inf)
    rate = scale.overload * len(at_once) / simulate(_servers(scale)[ORACLE], at_once, rough).seconds
    trace = _trace(scale, rate)
    measured = {}
    for system, server in _servers(scale, model).items():
        timed = Timed(server, calibration.step)
        measured[system] = simulate(timed, trace, timed).latency
    found = calibration.fit()
    simulated = {
        system: simulate(server, trace, found.cost).latency
        for system, server in _servers(scale).items()
    }
    return Reality(found, rate, len(trace), measured, simulated)


def _servers(scale: Scale, model: PagedModel | None = None) -> dict[str, Server]:
    """Both systems; with `model` they compute."""
    slots = scale.num_slots
    if model is None:
        paged = Paged(slots, MAX_RUNNING, BLOCK_SIZE)
        return {PARTYWALL: paged, ORACLE: Orca(slots, _whole_blocks, MAX_RUNNING)}
    paged = Paged(slots, MAX_RUNNING, BLOCK_SIZE, model=ModelRunner(model))
    return {PARTYWALL: paged, ORACLE: ComputedOrca(model, slots, MAX_RUNNING)}


def _whole_blocks(request: TracedRequest) -> int:
    """As Orca (Oracle) reserves, but a block at least: so that each range is a block table."""
    return max(BLOCK_SIZE, reserve_oracle(request))


def _trace(scale: Scale, rate: float) -> list[TracedRequest]:
    arrivals = poisson_arrivals(scale.num_requests, rate)
    texts = _requests(scale, scale.num_requests, seed=0)
    return [
        TracedRequest(number, arrival, *text)
        for number, (arrival, text) in enumerate(zip(arrivals, texts, strict=True))
    ]


def _requests(scale: Scale, count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Prompts of random tokens, and scripts of as many tokens as answers shall have."""
    found = sharegpt(count, seed)
    generator = torch.Generator().manual_seed(seed)
    requests = []
    for prompt, output in zip(found.prompts, found.outputs, strict=True):
        size = (max(1, prompt // scale.divisor),)
        ids = torch.randint(_VOCABULARY, size, generator=generator).tolist()
        requests.append((ids, [0] * max(1, output // scale.divisor)))
    return requests
