"""An engine without a model: its own scheduler and block pool, under a runner with a script."""

from __future__ import annotations

from engine.api import EngineInfo
from engine.config import EngineConfig
from engine.run.steps import Runner
from engine.serve.core import EngineCore

_MAX_RUNNING = 64
_STEP_TOKENS = 2048
_VOCAB_SIZE = 2**32


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
