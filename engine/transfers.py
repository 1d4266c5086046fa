"""What a step moves between blocks before it computes anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Transfers:
    """Moves of whole blocks, done before the forward pass. Each list is one batched call.

    They read what earlier steps have computed, never what the same step computes.
    """

    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source block, target block); no block is a target twice, or both."""


class TransferQueue:
    """Collects the transfers of the step that is being planned."""

    def __init__(self) -> None:
        self._sources: dict[int, int] = {}

    def copy(self, source: int, target: int) -> None:
        """Copy a block. The caller sees to it that the source is not taken for something else."""
        self._sources[target] = source

    def cancel(self, targets: Iterable[int]) -> None:
        """What was to become the contents of these blocks is not wanted any more."""
        if self._sources:
            for target in targets:
                self._sources.pop(target, None)

    def take(self) -> Transfers:
        """Everything since the last call."""
        copies = [(source, target) for target, source in self._sources.items()]
        self._sources.clear()
        return Transfers(copies)
