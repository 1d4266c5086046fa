"""Texts as a prefix cache sees them: blocks of 16 tokens, told apart by all that is before them.

A text is a chain of pieces, each of so many tokens; equal pieces behind equal texts are one. What a
block is called stands for it and for everything in front of it, as a block's hash does.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from bench.hybrid.shapes import BLOCK

_Part = tuple[Hashable, int, int]
"""A piece, and from where to where it lies in a block."""


class Shelf:
    """Gives the blocks of all texts of a trace their numbers, from 0 on."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, tuple[_Part, ...]], int] = {}

    @property
    def empty(self) -> Text:
        """The beginning of every text."""
        return Text(self, 0, np.empty(0, np.int32), ())

    def number(self, before: int, parts: tuple[_Part, ...]) -> int:
        """The block of these parts behind block `before`, -1 at the beginning of a text."""
        return self._numbers.setdefault((before, parts), len(self._numbers))


@dataclass(frozen=True, slots=True)
class Text:
    """Made by `Shelf.empty` and `then`."""

    shelf: Shelf
    tokens: int
    blocks: np.ndarray
    """The numbers of whole blocks."""
    rest: tuple[_Part, ...]
    """What is behind them."""

    def then(self, piece: Hashable, tokens: int) -> Text:
        """This text with a piece of so many tokens behind it."""
        added: list[int] = []
        rest, start = self.rest, 0
        last = int(self.blocks[-1]) if self.blocks.size else -1
        room = BLOCK - self.tokens % BLOCK
        while tokens - start >= room:
            last = self.shelf.number(last, (*rest, (piece, start, start + room)))
            added.append(last)
            rest, start, room = (), start + room, BLOCK
        if start < tokens:
            rest = (*rest, (piece, start, tokens))
        blocks = np.concatenate([self.blocks, np.array(added, np.int32)])
        return Text(self.shelf, self.tokens + tokens, blocks, rest)
