"""The blocks of an adapter: what they are found by, and how threads fill them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import blake2b

from engine.adapters.memory import AdapterMemory, Image
from engine.blocks.hashing import HASH_BYTES
from engine.disk.memory import Landing


@dataclass(slots=True, eq=False)
class Placed:
    """An adapter that a model computes with, or did until a block of it was evicted."""

    key: bytes
    """What its last block is found by, which is evicted before the others."""
    seconds: float
    """See `LoadedAdapter`."""


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


def places_of(numbers: Sequence[int], blocks: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Of blocks of these numbers, by their pages: each page's number in the image, and its own."""
    return [
        (number * len(pages) + at, page)
        for number, pages in zip(numbers, blocks, strict=True)
        for at, page in enumerate(pages)
    ]


def write(
    image: Image, numbers: list[int], landing: Landing, fill_others: Callable[[], None]
) -> None:
    """Fill blocks, whose pages are neighbours, with those of these numbers, here and in the other
    processes that there are.
    """
    for number, target in zip(numbers, landing.targets, strict=True):
        pages = len(target) // image.page_bytes
        for place, page in enumerate(range(number * pages, (number + 1) * pages)):
            if page < image.num_pages:
                image.fill(page, target[place * image.page_bytes :][: image.page_bytes])
    fill_others()
