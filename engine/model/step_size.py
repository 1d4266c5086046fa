"""How large a step may be where nobody says it: what suits the device, decided here alone.

A GPU reads all weights in every step, so more sequences at once cost it little until their KV takes
as long; how many there is room for grows with its memory. A step of prompts pays for its launches
once its products fill the device several times: those of a layer with 4,096 outputs are 32 tiles of
128 columns for every 128 tokens.
"""

from __future__ import annotations

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


def gpu_step(total_bytes: int, num_processors: int) -> StepSize:
    """For a GPU of that memory and so many multiprocessors; both are powers of two."""
    sequences = _power_below(_SEQUENCES_PER_GIB * total_bytes // _GIB)
    tokens = _power_below(_TOKENS_PER_PROCESSOR * num_processors)
    return StepSize(
        min(max(tokens, _FEWEST_TOKENS), _MOST_TOKENS),
        min(max(sequences, _FEWEST_SEQUENCES), _MOST_SEQUENCES),
    )


def with_step_size(config: EngineConfig, device: torch.device) -> EngineConfig:
    """`config` with a token budget and a number of sequences: its own, or what suits `device`."""
    usual = CPU_STEP
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        usual = gpu_step(found.total_memory, found.multi_processor_count)
    return sized(config, usual)


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
