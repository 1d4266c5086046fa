"""What loading adapters needs of the model that they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Image(Protocol):
    """An adapter's weights, as pages of the block pool hold them."""

    @property
    def num_pages(self) -> int:
        """How many it takes."""
        ...

    @property
    def page_bytes(self) -> int:
        """Of one of them."""
        ...

    @property
    def num_bytes(self) -> int:
        """Of the host's memory that it takes."""
        ...

    def fill(self, number: int, target: memoryview) -> None:
        """Write page `number` of it: for any thread."""
        ...


class AdapterMemory(Protocol):
    """A model whose linear layers adapters may change."""

    def prepare(self, config: bytes, weights: bytes) -> Image:
        """Read PEFT's two files: for any thread, and may take seconds.

        Raises `engine.adapters.files.BadAdapter`.
        """
        ...

    def filling(self, image: Image, places: Sequence[tuple[int, int]]) -> Callable[[], None]:
        """What any thread is to do so that other processes which compute the model, too, have pages
        of an image where they belong: by (number in the image, page), which nobody reads or writes.
        """
        ...

    def use(self, name: bytes, image: Image, pages: Sequence[int]) -> None:
        """From now on requests' adapter of that name is what these pages hold."""
        ...

    def forget(self, name: bytes) -> None:
        """There is no adapter of that name any more: no step that is still to come has it."""
        ...
