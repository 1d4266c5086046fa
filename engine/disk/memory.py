"""What keeping blocks needs of the memory that they are in: their bytes, and a way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.blocks.transfers import Transfers


@dataclass(frozen=True, slots=True)
class Fetched:
    """Copies of blocks, on their way to the host."""

    images: list[memoryview]
    """Their bytes, once they are there; until the next ones are fetched."""
    is_there: Callable[[], bool]
    """Whether they have arrived."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Blocks that are to be filled from elsewhere, and that nobody else reads or writes."""

    targets: list[memoryview]
    """Where each block's bytes are to be written, by whatever thread."""
    land: Callable[[], object]
    """All of them are written: steps that are computed from now on may read the blocks."""


class BlockMemory(Protocol):
    """The memory of a model's blocks; for the engine's loop, but where any thread is named.

    Blocks are given by their pages: all of a call have as many.
    """

    @property
    def page_bytes(self) -> int:
        """Of one page."""
        ...

    @property
    def block_layout(self) -> bytes:
        """How the bytes of a block lie."""
        ...

    def make_ready(self, num_pages: int) -> None:
        """Let the first pages be written without delay: for any thread, and may take seconds."""
        ...

    def move(self, transfers: Transfers) -> None:
        """Do transfers, behind all steps so far."""
        ...

    def fetch(self, blocks: Sequence[Sequence[int]]) -> Fetched:
        """Begin to copy blocks that have been computed. Those fetched before are given up."""
        ...

    def landing(self, blocks: Sequence[Sequence[int]]) -> Landing:
        """Begin to fill blocks, for which no transfer is queued."""
        ...
