"""What seeing pictures needs of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Layout(Protocol):
    """How what was seen of a picture lies in memory."""

    @property
    def num_bytes(self) -> int:
        """Of all of it."""
        ...


class Sight(Protocol):
    """A model with a tower, which sees one picture at a time."""

    def begin(self, pieces: Sequence[bytes], token_ids: list[int]) -> None:
        """Have a picture seen, as the service has brought it, that these tokens stand for."""
        ...

    def advance(self, seconds: float) -> bool:
        """Go on for about so long; returns whether the picture was seen, or cannot be."""
        ...

    def keep(self, name: bytes) -> int:
        """Keep what was seen under that name; returns its bytes. Raises whatever went wrong."""
        ...

    def forget(self, name: bytes) -> None:
        """Nobody shows the picture of that name."""
        ...

    def lay_out(self, name: bytes) -> Layout:
        """How what was seen of it lies in pages, one behind the other."""
        ...

    def write(self, name: bytes, targets: Sequence[memoryview]) -> None:
        """Write that to memory, in pieces that follow each other; the last ones may be too long."""
        ...

    def read(self, name: bytes, layout: Layout, pages: Sequence[int]) -> int:
        """Keep under that name what lies so in these pages; returns its bytes."""
        ...
