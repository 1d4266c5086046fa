"""Adapters as blocks of the pool: how these are found, and how they are filled."""

from __future__ import annotations

from hashlib import blake2b

from engine.adapters.memory import AdapterMemory, Image
from engine.blocks.hashing import HASH_BYTES
from engine.disk.memory import Landing


def block_hash(name: bytes, number: int) -> bytes:
    """By which a block of an adapter is found."""
    return blake2b(name + number.to_bytes(4, "little"), digest_size=HASH_BYTES).digest()


def read_image(model: AdapterMemory, pieces: list[bytes]) -> Image:
    """What a model makes of pieces, which take a while to be put together."""
    return model.prepare(pieces[0], b"".join(pieces[1:]))


def write_blocks(image: Image, numbers: list[int], landing: Landing) -> None:
    """Fill blocks, whose pages are neighbours, with those of these numbers."""
    for number, target in zip(numbers, landing.targets, strict=True):
        pages = len(target) // image.page_bytes
        for place, page in enumerate(range(number * pages, (number + 1) * pages)):
            if page < image.num_pages:
                image.fill(page, target[place * image.page_bytes :][: image.page_bytes])
