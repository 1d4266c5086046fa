"""How large a step may be where nobody says it: what suits the device, decided here alone.

A GPU reads all weights in every step, so more sequences at once cost it little until their KV takes
as long; how many there is room for grows with its memory. A step of prompts pays for its launches
once its products fill the device several times: those of a layer with 4,096 outputs are 32 tiles of
128 columns for every 128 tokens. How fast a CPU multiplies, and how fast it reads weights, differs
too much to say: it is measured (`engine.model.calibration`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from msgspec import structs

from engine.config import EngineConfig

_GIB = 2**30
_SEQUENCES_PER_GIB = 4
_FEWEST_SEQUENCES, _MOST_SEQUENCES = 64, 512
_TOKENS_PER_PROCESSOR = 32
"""So that such a product is eight tiles for each."""
_FEWEST_TOKENS, _MOST_TOKENS = 1024, 8192


class StepSize(NamedTuple):
    """What a step may compute, at most."""

    tokens: int
    """Of prompts; one that also decodes is as long as `EngineConfig.itl_target_ms` lets it."""
    sequences: int


CPU_STEP = StepSize(tokens=512, sequences=64)
"""Of a CPU that was not measured."""
_FIXED_SHARE = 1 / 32
"""Of a step of prompts on a CPU, for what it takes however few tokens it has."""
_FEWEST_CPU_TOKENS, _MOST_CPU_TOKENS = 128, 2048


def cpu_tokens(fixed_seconds: float, token_seconds: float) -> int:
    """Of a CPU's step of prompts, which takes so long and so much more by each token.

    A power of two: what is measured a little differently the next time gives the same.
    """
    if token_seconds <= 0:
        return CPU_STEP.tokens
    tokens = fixed_seconds / (_FIXED_SHARE * token_seconds)
    nearest = 1 << round(math.log2(max(tokens, 1.0)))
    return min(max(nearest, _FEWEST_CPU_TOKENS), _MOST_CPU_TOKENS)


def gpu_step(total_bytes: int, num_processors: int) -> StepSize:
    """For a GPU of that memory and so many multiprocessors; both are powers of two."""
    sequences = _power_below(_SEQUENCES_PER_GIB * total_bytes // _GIB)
    tokens = _power_below(_TOKENS_PER_PROCESSOR * num_processors)
    return StepSize(
        min(max(tokens, _FEWEST_TOKENS), _MOST_TOKENS),
        min(max(sequences, _FEWEST_SEQUENCES), _MOST_SEQUENCES),
    )


def with_step_size(
    config: EngineConfig,
    device: torch.device,
    cpu_tokens: int = CPU_STEP.tokens,
    together: int = 0,
) -> EngineConfig:
    """`config` with a token budget and a number of sequences: its own, or what suits `device`.

    `cpu_tokens` were measured to suit it if it is a CPU; a step is to have room for as many as are
    computed `together`, beside what decodes.
    """
    usual = CPU_STEP._replace(tokens=cpu_tokens)
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        usual = gpu_step(found.total_memory, found.multi_processor_count)
    sequences = config.max_running_requests or usual.sequences
    return sized(
        config, usual._replace(tokens=max(usual.tokens, together and together + sequences))
    )


def sized(config: EngineConfig, usual: StepSize) -> EngineConfig:
    """`config` with `usual` where it says nothing; every sequence can decode in every step."""
    tokens, sequences = config.step_token_budget, config.max_running_requests
    if sequences is None:
        sequences = usual.sequences if tokens is None else min(usual.sequences, tokens)
    if tokens is None:
        tokens = max(usual.tokens, sequences)
    return structs.replace(config, step_token_budget=tokens, max_running_requests=sequences)


def _power_below(count: int) -> int:
    """The largest power of two that is not more."""
    return 1 << max(0, count.bit_length() - 1)
