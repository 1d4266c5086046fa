"""What loading adapters needs of the model that they change, and of the block pool."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from engine.blocks.hashing import HASH_BYTES
from engine.disk.memory import Landing


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

    def use(self, name: bytes, image: Image, pages: Sequence[int]) -> None:
        """From now on requests' adapter of that name is what these pages hold."""
        ...

    def forget(self, name: bytes) -> None:
        """There is no adapter of that name any more: no step that is still to come has it."""
        ...


@dataclass(slots=True, eq=False)
class Loading:
    """An adapter on its way into blocks."""

    blocks: list[int]
    """All of it, with a reference each."""
    num_new: int
    """That are written."""
    landing: Landing
    written: Future[None]
    began_at: float = field(default_factory=time.monotonic)


def block_hash(name: bytes, number: int) -> bytes:
    """By which a block of an adapter is found."""
    return blake2b(name + number.to_bytes(4, "little"), digest_size=HASH_BYTES).digest()


def read(model: AdapterMemory, pieces: list[bytes]) -> Image:
    """What a model makes of pieces, which take a while to be put together."""
    return model.prepare(pieces[0], b"".join(pieces[1:]))


def write(image: Image, numbers: list[int], landing: Landing) -> None:
    """Fill blocks, whose pages are neighbours, with those of these numbers."""
    for number, target in zip(numbers, landing.targets, strict=True):
        pages = len(target) // image.page_bytes
        for place, page in enumerate(range(number * pages, (number + 1) * pages)):
            if page < image.num_pages:
                image.fill(page, target[place * image.page_bytes :][: image.page_bytes])
