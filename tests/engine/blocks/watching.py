"""Reads the frames of `engine.blocks.wall`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from engine.blocks.wall import ANEW, HELD, RUN


class Cell(NamedTuple):
    """What one cell shows."""

    state: int
    owner: str = ""
    num_references: int = 0


FREE: Final = Cell(0)


def decode(frame: bytes, cells: list[Cell], owners: list[str]) -> tuple[int, int]:
    """Take over a frame into what its watcher has been told; returns its flags, and how many cells
    are yet to be told.
    """
    numbers = _Reader(frame)
    flags, num_blocks, num_slots, pending = (numbers.take() for _ in range(4))
    if flags & ANEW:
        cells[:] = [FREE] * (num_blocks + num_slots)
        owners.clear()
    owners += [numbers.text() for _ in range(numbers.take())]
    at = 0
    while numbers.has_more:
        at += numbers.take()
        state = numbers.take()
        count = 1 + (numbers.take() if state & RUN else 0)
        state &= ~RUN
        owner = owners[numbers.take()] if state else ""
        cell = Cell(state, owner, numbers.take() if state & HELD else 0)
        cells[at : at + count] = [cell] * count
        at += count
    return flags, pending


@dataclass(slots=True)
class _Reader:
    frame: bytes
    at: int = 0

    @property
    def has_more(self) -> bool:
        return self.at < len(self.frame)

    def take(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.frame[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def text(self) -> str:
        length = self.take()
        self.at += length
        return self.frame[self.at - length : self.at].decode()
