"""How much memory the KV cache gets where nobody says it."""

from __future__ import annotations

import logging

import torch

from engine.api import EngineError
from engine.run.control_groups import available_memory

_log = logging.getLogger(__name__)

_CPU_SHARE = 1 / 8
_GPU_SHARE = 0.85
_USEFUL_TOKENS = 8192
"""A CPU's share is made up to this context, if the memory is there: below it, chats end early."""
_LEAST_TOKENS = 512
"""Less holds no system prompt with a question and an answer."""
_MIB = 2**20
_KEPT_BYTES = 128 * _MIB
"""Of what is free, for that: buffers of steps, streams under way, the service's own process."""


def automatic_kv_bytes(
    device: torch.device, block_bytes: int, block_size: int, longest: int
) -> int:
    """A share of the memory that is free once the weights are loaded.

    `block_bytes` hold `block_size` tokens; `longest` tokens are the most that a request may have.
    Raises `EngineError` where that makes a context which is of no use.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _GPU_SHARE)
    free = available_memory()
    useful = min(_USEFUL_TOKENS, longest)
    wanted = -(-useful // block_size) * block_bytes
    chosen = int(max(free * _CPU_SHARE, min(wanted, free - _KEPT_BYTES)))
    if chosen >= wanted:
        return chosen
    tokens = chosen // block_bytes * block_size
    found = (
        f"{free // _MIB} MiB of memory are left beside the weights. The KV cache takes "
        f"{chosen // _MIB} MiB of it, for requests of {tokens} tokens, prompt and answer; {useful} "
        f"tokens need {wanted // _MIB} MiB, and what else runs {_KEPT_BYTES // _MIB} MiB. Give "
        "this machine or container more memory, or --kv-memory a size"
    )
    if tokens < min(_LEAST_TOKENS, useful):
        raise EngineError(f"kv_memory: too little. {found}")
    _log.warning("%s", found)
    return chosen
