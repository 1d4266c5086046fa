"""Attention that counts positions by itself: in packed tokens, those of each token's sequence.

Llama 4's layers without positions scale queries by how far on they are, which they take from the
length of the cache that they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, arange, nn

Positions = Callable[[], Tensor | None]
"""[num_tokens] int64, or `None` where tokens are of one sequence and begin it."""


def count_packed(model: nn.Module, positions: Positions) -> None:
    """Let each module of `model` that counts by itself find the `positions` of packed tokens."""

    def begin(
        _: nn.Module, args: Any, options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        found = positions()
        return None if found is None else (args, options | {"past_key_values": _Counted(found)})

    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False):
            module.register_forward_pre_hook(begin, with_kwargs=True)


class _Counted:
    """In place of a cache: how many tokens come before the first, said for each token."""

    def __init__(self, positions: Tensor) -> None:
        self._before = positions - arange(len(positions), device=positions.device)

    def get_seq_length(self, _: int) -> Tensor:
        return self._before

    def update(self, key: Tensor, value: Tensor, _: int) -> tuple[Tensor, Tensor]:
        return key, value
