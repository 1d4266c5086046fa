"""Brings an engine to the steps that `bench step` looks at, and takes them apart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import Any, Final, TypeVar

import msgspec
import torch
import zmq

from bench.common.engines import Sparing, request
from bench.common.stopwatch import PartTimes, replaced
from bench.registry import BenchError
from engine.api import SamplingParams
from engine.assembly.parts import load_parts
from engine.batch.batch import BatchBuilder
from engine.config import EngineConfig
from engine.model.kernel_paths import choose_kernel_paths, use_choice
from engine.model.layers import fused as fused
from engine.model.layers.eager import decoder as eager
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.paged_model import PagedModel
from engine.run import runner as engine_runner
from engine.run.runner import ModelRunner
from engine.run.sampler import Draws
from engine.schedule.scheduler import Scheduler
from engine.sequences.sequence import Sequence
from engine.serve import loop as engine_loop
from engine.serve.core import EngineCore
from engine.system.threads import threads_of_rank
from kernels.kv_format import KvDtype
from kernels.types import Dense

Step = TypeVar("Step")
Models = Mapping[str, PagedModel]

WARM_UP_STEPS: Final = 2
_PROMPT_BUDGET: Final = 512
"""Tokens of a step that computes prompts which are not measured."""
_CALLS: Final = (
    (Scheduler, "plan", "plan"),
    (Scheduler, "commit", "commit"),
    (BatchBuilder, "build", "batch"),
    (engine_runner, "sample", "sampling"),
    (Draws, "result", "sampling"),
    (engine_loop, "_send", "hand_over"),
    (FusedDecoder, "forward", "forward"),
    (FusedDecoder, "embed", "embedding"),
    (fused, "add_rms_norm", "norms"),
    (fused, "rotate_and_write", "rotation"),
    (fused, "attend", "attention"),
    (fused, "gate", "activation"),
    (fused, "route", "router"),
    (EagerDecoder, "forward", "forward"),
    (eager, "write_kv", "rotation"),
    (eager, "attend", "attention"),
)
"""Owner and name of what is replaced, and the part that it is."""


class StepBench:
    """One loaded model, brought to each case by an engine of its own."""

    def __init__(self, config: EngineConfig, num_steps: int, part_names: Iterable[str]) -> None:
        """Measured are `num_steps` steps of each of two kinds, and in them the parts named."""
        parts = load_parts(config)
        self.info = parts.info
        self.is_fused = parts.model.weights.is_fused
        self._config = parts.config
        self._model = parts.model
        self._num_steps = num_steps
        self._part_names = list(part_names)
        self._times = PartTimes(self._synchronise)
        self._stack = ExitStack()

    def __enter__(self) -> StepBench:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        context = self._stack.enter_context(zmq.Context())
        self._socket, self._service = (
            self._stack.enter_context(context.socket(zmq.PAIR)) for _ in range(2)
        )
        self._service.bind(f"ipc://{folder}/step")
        self._socket.connect(f"ipc://{folder}/step")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def decode(self, batch: int, context: int) -> dict[str, float]:
        """Seconds of each part of steps in which `batch` sequences behind `context` decode."""
        return self._measured(*self._decoding(self._model, batch, context))

    def decode_in_turns(
        self, models: Models, batch: int, context: int, *, shared: bool = False
    ) -> dict[str, list[float]]:
        """Seconds of whole decode steps behind a context that is `shared`, or each sequence's own,
        of each model in turns.
        """
        return self._in_turns(
            {
                kind: self._decoding(model, batch, context, shared=shared)
                for kind, model in models.items()
            }
        )

    def prefill_in_turns(self, models: Models, chunk: int, context: int) -> dict[str, list[float]]:
        """The same for steps of `chunk` tokens of a prompt, the first behind `context`."""
        return self._in_turns(
            {kind: self._prefilling(model, chunk, context) for kind, model in models.items()}
        )

    def core_that_decodes(self, batch: int, context: int) -> EngineCore:
        """An engine whose next steps decode `batch` sequences behind `context`."""
        return _computing(self._decoding(self._model, batch, context))

    def core_that_prefills(self, chunk: int, context: int) -> EngineCore:
        """An engine whose next steps take `chunk` tokens of a prompt, first behind `context`."""
        return _computing(self._prefilling(self._model, chunk, context))

    def over_caches(self, kinds: Iterable[KvDtype]) -> Models:
        """The model's weights over a KV cache of each type."""
        size = self._config.block_size
        return {kind: PagedModel(self._model.weights, size, kind) for kind in kinds}

    def in_modes(self) -> Models:
        """The default and the batch-invariant one, over the same products: on a CPU they are
        invariant in both.
        """
        given = self._model.weights, self._config.block_size, self._config.kv_dtype
        return {
            "default": PagedModel(*given),
            "invariant": PagedModel(*given, batch_invariant=True),
        }

    def _prefilling(
        self, model: PagedModel, chunk: int, context: int
    ) -> tuple[EngineCore, Sparing]:
        """An engine that is about to compute chunks behind `context`, and its runner."""
        before = context // chunk
        length = (before + self.num_turns) * chunk + 1
        core, runner = self._core(model, 1, length + 1, chunk)
        core.submit(request("prompt", _prompt(length), 1))
        for _ in range(before):
            core.step()
        return core, runner

    @property
    def num_turns(self) -> int:
        """Steps of each kind, where kinds take turns; the first `WARM_UP_STEPS` do not count."""
        return self._num_steps + WARM_UP_STEPS

    def _in_turns(
        self, engines: Mapping[str, tuple[EngineCore, Sparing]]
    ) -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {kind: [] for kind in engines}
        for _ in range(self.num_turns):
            for kind, (core, runner) in engines.items():
                runner.computes = True
                taken[kind].append(self.plain_step(core))
        return {kind: seconds[WARM_UP_STEPS:] for kind, seconds in taken.items()}

    def _decoding(
        self, model: PagedModel, batch: int, context: int, *, shared: bool = False
    ) -> tuple[EngineCore, Sparing]:
        """An engine in which `batch` sequences are about to decode, and its runner; behind the same
        blocks if the context is `shared`.
        """
        output = 2 * self.num_turns + 2
        core, runner = self._core(
            model, batch, context + output, batch * context, prefix_cache=shared
        )
        for number in range(batch):
            core.submit(request(str(number), _prompt(context), output))
            if shared and not number:
                core.step()  # the others find it
        core.step()
        if len(core.scheduler.running) != batch:
            raise BenchError("the requests do not all fit in one step")
        return core, runner

    def sampled(
        self, prompts: list[list[int]], kinds: Mapping[str, SamplingParams]
    ) -> dict[str, list[float]]:
        """Seconds of whole decode steps behind `prompts`, of one length, in turns: in each, all
        sequences choose in one way.
        """
        batch, context = len(prompts), len(prompts[0])
        rounds = self.num_turns
        # Who is first decodes while the others' prompts are computed.
        output = rounds * len(kinds) + batch * context // _PROMPT_BUDGET + batch + 2
        core, runner = self._core(self._model, batch, context + output, max(batch, _PROMPT_BUDGET))
        runner.computes = True
        for number, prompt in enumerate(prompts):
            core.submit(request(str(number), prompt, output))
        sequences = self._sequences_that_decode(core, batch)
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, sampling in kinds.items():
                for seed, sequence in enumerate(sequences):
                    sequence.sampling = msgspec.structs.replace(
                        sampling, max_tokens=output, seed=seed
                    )
                taken[kind].append(self.plain_step(core))
        return {kind: seconds[WARM_UP_STEPS:] for kind, seconds in taken.items()}

    def _sequences_that_decode(self, core: EngineCore, count: int) -> list[Sequence]:
        """Compute prompts until all of them are behind the engine."""
        while True:
            self.plain_step(core)
            found = [one for group in core.scheduler.running.values() for one in group.unfinished]
            if len(found) == count and all(one.num_output_tokens for one in found):
                return found

    def plain_step(self, core: EngineCore) -> float:
        """Seconds of a whole step."""
        self._synchronise()
        start = perf_counter()
        self._step(core)
        self._synchronise()
        seconds = perf_counter() - start
        while self._service.poll(0):
            self._service.recv()
        return seconds

    def prefill(self, chunk: int) -> dict[str, float]:
        """Seconds of each part of steps that compute `chunk` tokens of a prompt."""
        length = min((2 * self.num_turns + 1) * chunk, self.info.max_context_tokens - 1)
        if length < (2 * WARM_UP_STEPS + 2) * chunk:
            raise BenchError("--chunk: contexts of this model have room for too few of these")
        core, runner = self._core(self._model, 1, length + 1, chunk)
        core.submit(request("prompt", _prompt(length), 1))
        return self._measured(core, runner, (length - 1) // chunk)

    def _core(
        self, model: PagedModel, batch: int, tokens: int, budget: int, *, prefix_cache: bool = False
    ) -> tuple[EngineCore, Sparing]:
        """An engine with memory for `batch` sequences of `tokens`, touched as in use."""
        if tokens > self.info.max_context_tokens:
            raise BenchError(f"contexts of this model end at {self.info.max_context_tokens}")
        num_blocks = batch * (-(-tokens // self._config.block_size) + 1)
        model.allocate(num_blocks)
        model.memory.zero_()
        # Steps are as large as the case says, on whatever machine, and emit a token a sequence.
        config = msgspec.structs.replace(
            self._config,
            max_running_requests=batch,
            step_token_budget=max(batch, budget),
            itl_target_ms=0.0,
            speculation="off",
            prefix_cache=prefix_cache,
        )
        info = msgspec.structs.replace(self.info, num_blocks=num_blocks, num_host_blocks=0)
        runner = Sparing(ModelRunner(model))
        return EngineCore(config, info, runner), runner

    def _measured(
        self, core: EngineCore, runner: Sparing, most_steps: int | None = None
    ) -> dict[str, float]:
        runner.computes = True
        plain: list[float] = []
        apart: list[dict[str, float]] = []
        num_steps = 2 * self.num_turns
        for index in range(min(num_steps, most_steps or num_steps)):
            if index % 2:
                with self._taken_apart():
                    self._times.timed("other", self._step)(core)
                apart.append(self._times.take())
            else:
                plain.append(self.plain_step(core))
            while self._service.poll(0):
                self._service.recv()
        middle = _middle_half(apart[WARM_UP_STEPS:], lambda step: sum(step.values()))
        seconds = {part: fmean(step.get(part, 0.0) for step in middle) for part in self._part_names}
        seconds["total"] = fmean(sum(step.values()) for step in middle)
        alone: list[float] = _middle_half(plain[WARM_UP_STEPS:], float)
        seconds["plain"] = fmean(alone)
        return seconds

    def _step(self, core: EngineCore) -> None:
        """What the engine's loop does between two looks at its messages."""
        deltas = core.step()
        if any(delta.error is not None for delta in deltas):
            raise BenchError("a step failed")
        engine_loop._send(self._socket, deltas)

    @contextmanager
    def _taken_apart(self) -> Iterator[None]:
        timed = self._times.timed
        with ExitStack() as stack:
            for owner, name, part in _CALLS:
                call = timed(part, vars(owner)[name])
                stack.enter_context(replaced(owner, name, call))
            decoder = self._model.weights.decoder
            if isinstance(decoder, FusedDecoder):
                layers = [self._timed_layer(layer) for layer in decoder._layers]
                stack.enter_context(replaced(decoder, "_layers", layers))
                stack.enter_context(replaced(decoder, "_head", timed("head", decoder._head)))
                # What the compiled library does in one call cannot be looked into.
                stack.enter_context(replaced(decoder, "_stack", None))
            yield

    def _timed_layer(self, layer: Any) -> Any:
        network = self._timed_network(layer.network)
        return replace(self._timed(layer, qkv="qkv", out="out"), network=network)

    def _timed_network(self, network: Any) -> Any:
        if isinstance(network, Dense):
            return self._timed(network, gate_up="gate_up", down="down")
        shared = network.shared and self._timed(network.shared, gate_up="shared", down="shared")
        products = self._timed(network, router="router", experts="experts", shared_gate="shared")
        return replace(products, shared=shared)

    def _timed(self, owner: Any, **parts: str) -> Any:
        """`owner`, whose calls of these names count for these parts."""
        calls = {name: getattr(owner, name) for name in parts}
        timed = {name: self._times.timed(parts[name], call) for name, call in calls.items() if call}
        return replace(owner, **timed)

    def _synchronise(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)


def _computing(engine: tuple[EngineCore, Sparing]) -> EngineCore:
    core, runner = engine
    runner.computes = True
    return core


def _middle_half(steps: list[Step], seconds: Callable[[Step], float]) -> list[Step]:
    """Without the fastest and the slowest quarter: as robust as a median, and parts add up."""
    steps = sorted(steps, key=seconds)
    quarter = len(steps) // 4
    return steps[quarter : len(steps) - quarter]


def _prompt(length: int) -> list[int]:
    return [1 + position % 7 for position in range(length)]


class ParallelBench:
    """A model in `ranks` processes, and in this one with as many threads as they have together."""

    def __init__(self, config: EngineConfig, ranks: int, num_steps: int) -> None:
        """Measured are `num_steps` steps of either."""
        share = threads_of_rank(config.threads, ranks)
        assert share is not None
        configs = [
            msgspec.structs.replace(config, tensor_parallel=count, threads=share * ranks)
            for count in (1, ranks)
        ]
        self._benches = [StepBench(one, num_steps, ()) for one in configs]
        self._choices = [
            choose_kernel_paths(msgspec.structs.replace(config, threads=threads))
            for threads in (share * ranks, share)
        ]
        self.info = self._benches[0].info
        self.is_fused = self._benches[0].is_fused
        self._stack = ExitStack()

    def __enter__(self) -> ParallelBench:
        for bench in self._benches:
            self._stack.enter_context(bench)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def compared(
        self, batches: Iterable[int], context: int, chunk: int
    ) -> dict[str, dict[str, list[float]]]:
        """Seconds of whole steps behind `context`, in turns, by case and then where."""
        cases: dict[str, Callable[[StepBench], EngineCore]] = {
            f"decode_{batch}": partial(StepBench.core_that_decodes, batch=batch, context=context)
            for batch in batches
        }
        cases["prefill"] = partial(StepBench.core_that_prefills, chunk=chunk, context=context)
        return {case: self._in_turns(begin) for case, begin in cases.items()}

    def _in_turns(self, begin: Callable[[StepBench], EngineCore]) -> dict[str, list[float]]:
        cores = []
        for bench, choice in zip(self._benches, self._choices, strict=True):
            use_choice(choice)
            cores.append(begin(bench))
        taken: dict[str, list[float]] = {"one": [], "parallel": []}
        for _ in range(self._benches[0].num_turns):
            turn = zip(taken.values(), self._benches, self._choices, cores, strict=True)
            for seconds, bench, choice, core in turn:
                use_choice(choice)
                seconds.append(bench.plain_step(core))
        return {where: seconds[WARM_UP_STEPS:] for where, seconds in taken.items()}
