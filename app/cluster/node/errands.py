"""What a replica's engine wants: adapters and pictures, brought by doors whose requests wait.

A replica knows neither the store nor a tenant's key. It sends a door on an errand, and the door
comes back with what it was sent for, piece by piece; a door that leaves meanwhile is followed by
another one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

from app.cluster.messages import Brought, Wanted
from engine.api import EngineError, EngineUnavailable

_PATIENCE_SECONDS: Final = 60.0
"""For a door with its next piece: as long the engine waits, too."""


class Door(Protocol):
    """A front door that is attended."""

    def needs(self, name: bytes) -> bool:
        """Whether it has a request here with the adapter or picture of that name."""
        ...

    def put(self, message: Wanted) -> None:
        """Have it told."""
        ...


class _Errand:
    """What one door brings, a piece at a time: it waits until that was taken."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self._pieces: asyncio.Queue[Brought | None] = asyncio.Queue()
        self._has_taken = asyncio.Event()
        self._is_over = False

    async def bring(self, piece: Brought) -> None:
        """Returns when it was taken, or nobody wants it."""
        if not self._is_over:
            self._has_taken.clear()
            self._pieces.put_nowait(piece)
            await self._has_taken.wait()

    async def taken(self) -> AsyncIterator[bytes]:
        """What is brought. Raises `EngineError` where the door cannot, or does not go on, and
        `EngineUnavailable` where it has left.
        """
        while True:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    piece = await self._pieces.get()
            except TimeoutError:
                raise EngineError("it does not come") from None
            self._has_taken.set()
            if piece is None:
                raise EngineUnavailable("who was to bring it has left")
            if piece.error is not None:
                raise EngineError(piece.error)
            if piece.is_last:
                return
            yield piece.data

    def end(self) -> None:
        """Nothing is taken any more, and nobody waits here."""
        self._is_over = True
        self._pieces.put_nowait(None)
        self._has_taken.set()


class Errands:
    """All that the doors of a replica are on."""

    def __init__(self, doors: Mapping[str, Door]) -> None:
        """`doors` are those that are attended at any time, by their names."""
        self._doors = doors
        self._numbers = itertools.count()
        self._under_way: dict[int, _Errand] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    async def fetch(self, name: bytes) -> AsyncIterator[bytes]:
        """See `engine.client.Source`. A door that has none is followed by another one."""
        asked: set[Door] = set()
        error = EngineError("nobody is there to bring it")
        while True:
            left = (door for door in self._doors.values() if door not in asked)
            door = next((one for one in left if one.needs(name)), None)
            if door is None:
                raise error
            asked.add(door)
            number, errand, has_begun = next(self._numbers), _Errand(door), False
            self._under_way[number] = errand
            door.put(Wanted(name, number))
            try:
                async for piece in errand.taken():
                    has_begun = True
                    yield piece
                return
            except EngineUnavailable:
                raise
            except EngineError as failed:
                error = failed
                if has_begun:  # another one's pieces do not go on behind these
                    raise
            finally:
                del self._under_way[number]
                errand.end()

    async def bring(self, piece: Brought) -> bool:
        """Take a piece from a door; `False`: nobody wants more of that."""
        errand = self._under_way.get(piece.errand)
        if errand is None:
            return False
        await errand.bring(piece)
        return True

    def lose(self, door: Door) -> None:
        """It has left, and what it was to bring does not come."""
        for errand in self._under_way.values():
            if errand.door is door:
                errand.end()
