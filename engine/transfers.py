"""What a step moves between blocks before it computes anything."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Transfers:
    """Moves of whole blocks, done before the forward pass. Each list is one batched call.

    They read what earlier steps have computed, never what the same step computes.
    """

    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source block, target block); no block is a target twice, or both."""
