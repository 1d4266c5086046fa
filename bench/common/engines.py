"""What benches ask of engines: requests, and an engine without a model under a runner of theirs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

from bench.registry import BenchError
from engine.api import EngineInfo, EngineRequest, Namespaces, SamplingParams, TokenDelta
from engine.blocks.hashing import KEY_BYTES
from engine.config import EngineConfig
from engine.run.steps import Runner
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore

_MAX_RUNNING = 64
_STEP_TOKENS = 2048
_VOCAB_SIZE = 2**32
_KEY = bytes(KEY_BYTES)


def request(
    name: str,
    prompt: list[int],
    output: int = 0,
    *,
    key: bytes = _KEY,
    min_tokens: int = 0,
    **others: Any,
) -> EngineRequest:
    """For at most `output` tokens, chosen greedily, in the one namespace of that key; `others` are
    what else it asks for, or asks for instead.
    """
    given: dict[str, Any] = {
        "tenant": "bench",
        "namespaces": Namespaces(shared_key=key, private_key=key),
        "sampling": SamplingParams(max_tokens=output, min_tokens=min_tokens, temperature=0.0),
    }
    return EngineRequest(request_id=name, prompt=prompt, **given | others)


class Generating(Protocol):
    """What runs requests: an engine's process, or a cluster."""

    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """See `EngineClient`."""
        ...


async def deltas_of(engine: Generating, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
    """What comes of a request. Raises `BenchError` if it fails."""
    async with aclosing(engine.generate(request)) as deltas:  # type: ignore[type-var]
        async for delta in deltas:
            if delta.error is not None:
                raise BenchError(delta.error)
            yield delta


def finish(core: EngineCore) -> None:
    """Serve what has been submitted. Raises `BenchError` if a request fails."""
    while not core.is_idle:
        for delta in core.step():
            if delta.error is not None:
                raise BenchError(f"request {delta.request_id!r} failed: {delta.error}")


class AnyToken:
    """A model that always says the same."""

    def execute(self, plan: StepPlan) -> Sampled:
        """See `engine.run.steps.Runner`."""
        count = len(plan.samplers)
        return Sampled([1] * count, [None] * count)


class Sparing(AnyToken):
    """A model that says nothing of meaning, unless it is told to compute."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.computes = False

    def execute(self, plan: StepPlan) -> Sampled:
        """See `engine.run.steps.Runner`."""
        return self._runner.execute(plan) if self.computes else super().execute(plan)


def scripted_core(
    runner: Runner,
    num_slots: int,
    block_size: int,
    max_running: int = _MAX_RUNNING,
    *,
    prefix_cache: bool = True,
) -> EngineCore:
    """An engine with as many whole blocks as `num_slots` slots hold, and no limit on a request."""
    config = EngineConfig(
        model_path="scripted",
        block_size=block_size,
        step_token_budget=max(_STEP_TOKENS, max_running),
        max_running_requests=max_running,
        prefix_cache=prefix_cache,
        fairness="fcfs",
    )
    num_blocks = num_slots // block_size
    info = EngineInfo(
        model="scripted",
        device="none",
        dtype="none",
        block_size=block_size,
        num_blocks=num_blocks,
        max_context_tokens=num_blocks * block_size,
        max_running_sequences=max_running,
        vocab_size=_VOCAB_SIZE,
        eos_token_ids=(),
        hash_extras=b"",
    )
    return EngineCore(config, info, runner)
