"""How much memory the KV cache gets where nobody says it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.api import EngineError, Kind, block_pages, most_pages, most_tokens
from engine.system.control_groups import available_memory

_log = logging.getLogger(__name__)

_CPU_SHARE = 1 / 8
_GPU_SHARE = 0.92
"""Of all that a GPU has, weights and steps included: allocators keep pieces that fit nobody."""
_USEFUL_TOKENS = 8192
"""A CPU's share is made up to this context, if the memory is there: below it, chats end early."""
_LEAST_TOKENS = 512
"""Less holds no system prompt with a question and an answer."""
_MIB = 2**20
_KEPT_BYTES = 128 * _MIB
"""Of what is free, for that: buffers of steps, streams under way, the service's own process."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a GPU's memory is for beside the KV cache; all in bytes."""

    total: int
    used: int
    """Taken already: by the weights, by libraries, and by other processes."""
    step: int
    """By the largest step."""
    graphs: int
    """By recorded steps."""
    pictures: int = 0
    """By what was seen of them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What tokens take of the KV cache."""

    kinds: Sequence[Kind]
    block_size: int
    """Tokens."""
    block_bytes: int
    """Of a block of each kind, and what a draft model has beside it."""
    step_tokens: int
    """Computed in one step, at most."""

    def bytes_for(self, num_tokens: int) -> int:
        """What a sequence of so many takes at most, in whole blocks of each kind."""
        pages = most_pages(self.kinds, self.block_size, 0, num_tokens, 1, self.step_tokens)
        return -(-pages // block_pages(self.kinds)) * self.block_bytes

    def tokens_in(self, num_bytes: int) -> int:
        """The longest sequence for which so many are enough."""
        pages = max(0, num_bytes) // self.block_bytes * block_pages(self.kinds)
        return most_tokens(self.kinds, self.block_size, pages, 0, 1, self.step_tokens)


def automatic_kv_bytes(layout: Layout, longest: int) -> int:
    """On a CPU: a share of the memory that is free once the weights are loaded.

    `longest` are those that a request may have. Raises `EngineError` where that makes a context
    which is of no use.
    """
    free = available_memory()
    useful = min(_USEFUL_TOKENS, longest)
    wanted = layout.bytes_for(useful)
    chosen = int(max(free * _CPU_SHARE, min(wanted, free - _KEPT_BYTES)))
    if chosen >= wanted:
        return chosen
    tokens = layout.tokens_in(chosen)
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


def gpu_kv_bytes(needs: Needs, layout: Layout, longest: int) -> int:
    """On a GPU: what its weights, its largest step and its graphs leave of a share of its memory.

    The other arguments and errors are those of `automatic_kv_bytes`.
    """
    taken = needs.used + needs.step + needs.graphs + needs.pictures
    chosen = int(needs.total * _GPU_SHARE) - taken
    found = (
        f"of {needs.total // _MIB} MiB of the GPU {needs.used // _MIB} are taken by weights, "
        f"libraries and other processes, {needs.step // _MIB} are for the largest step, "
        f"{needs.pictures // _MIB} for what is seen of pictures, and {needs.graphs // _MIB} for "
        "CUDA graphs"
    )
    tokens = layout.tokens_in(chosen)
    if tokens < min(_LEAST_TOKENS, longest):
        raise EngineError(
            f"kv_memory: too little. {found}: {tokens} tokens are left for the KV cache. Give "
            "--step-token-budget or --max-running-requests a smaller number, or --kv-memory a size"
        )
    held = chosen // layout.block_bytes * layout.block_size
    _log.info("%s; the KV cache has %d MiB for %d tokens", found, chosen // _MIB, held)
    return chosen
