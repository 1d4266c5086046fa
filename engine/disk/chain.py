"""Where the blocks are that a prompt begins with, of each kind: in memory, on disk, or nowhere."""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import Enum
from typing import NamedTuple

from engine.api import EngineRequest
from engine.blocks.hashing import block_key
from engine.blocks.lookup import Lookup, served
from engine.blocks.tiers import Tiers
from engine.disk.files import block_name, name_key
from engine.disk.shelf import Shelf, Spot


class _Place(Enum):
    HOST = 1
    COMING = 2
    NOWHERE = 3


_Source = int | Spot | _Place
"""A block of the pool, a place on disk, or another one."""


class Part(NamedTuple):
    """A block of a chain, by its kind and number, that is on disk and not in memory."""

    kind: int
    number: int
    spot: Spot

    @property
    def name(self) -> bytes:
        """On disk."""
        return self.spot.file.head.names[self.spot.number]


class Plan(NamedTuple):
    """What a sequence goes on from that begins with some blocks of a chain."""

    held: list[int]
    """Blocks of the pool."""
    absent: list[Part]
    coming: list[bytes]
    """The names of those that somebody reads already."""


class Chain:
    """The blocks of a prompt, as they are now; each is looked for once."""

    def __init__(
        self,
        request: EngineRequest,
        hashes: list[bytes],
        tiers: Tiers,
        shelf: Shelf,
        coming: Sequence[Container[bytes]] = (),
    ) -> None:
        """`hashes` are those of the prompt; `coming` are the names of what others read."""
        self.hashes = hashes
        self._namespaces = request.namespaces
        self._tiers = tiers
        self._kinds = tiers.pool.kinds
        self._shelf = shelf
        self._coming = coming
        self._name_keys: dict[bytes, bytes] = {}
        found = [
            list[int]() if one.forgets else tiers.pool.find(hashes, kind)
            for kind, one in enumerate(self._kinds)
        ]
        self._num_found = list(map(len, found))
        self._sources: list[dict[int, _Source]] = [dict(enumerate(blocks)) for blocks in found]
        host = tiers.host if tiers.host.num_pages else None
        there = Lookup(tiers.pool, host).longest(hashes, 0, tiers.block_size)
        self.num_ready = len(there.rows[0])
        """How many of the first blocks need nothing from disk."""

    def key_of(self, number: int) -> bytes:
        """The namespace key of that block."""
        return block_key(self._namespaces, number, self._tiers.block_size)

    def is_on_disk(self, number: int) -> bool:
        """Whether that block of the first kind is."""
        return self._shelf.find(self._name(0, number)) is not None

    def longest(self, most: int) -> int:
        """Behind how many of its first `most` blocks every kind can go on, with those from disk."""

        def is_somewhere(kind: int, number: int) -> bool:
            return self._source(kind, number) is not _Place.NOWHERE

        for kind, rule in enumerate(self._kinds):
            if not rule.forgets:
                numbers = range(self._num_found[kind], most)
                most = next((one for one in numbers if not is_somewhere(kind, one)), most)
        return served(self._kinds, most, is_somewhere, 0, self._tiers.block_size)

    def plan(self, count: int) -> Plan:
        """What that takes behind `count` blocks, which `longest` has returned."""
        size, plan = self._tiers.block_size, Plan([], [], [])
        for kind, rule in enumerate(self._kinds):
            for number in rule.seen(count * size, size):
                source = self._source(kind, number)
                if isinstance(source, int):
                    plan.held.append(source)
                elif isinstance(source, Spot):
                    plan.absent.append(Part(kind, number, source))
                elif source is _Place.COMING:
                    plan.coming.append(self._name(kind, number))
        return plan

    def _source(self, kind: int, number: int) -> _Source:
        source = self._sources[kind].get(number)
        if source is None:
            source = self._sources[kind][number] = self._find(kind, number)
        return source

    def _find(self, kind: int, number: int) -> _Source:
        hashes = self.hashes[number : number + 1]
        blocks = self._tiers.pool.find(hashes, kind)
        if blocks:
            return blocks[0]
        if self._tiers.host.num_pages and self._tiers.host.find(hashes, kind):
            return _Place.HOST
        name = self._name(kind, number)
        if any(name in others for others in self._coming):
            return _Place.COMING
        return self._shelf.find(name) or _Place.NOWHERE

    def _name(self, kind: int, number: int) -> bytes:
        key = self.key_of(number)
        if key not in self._name_keys:
            self._name_keys[key] = name_key(key)
        return block_name(self._name_keys[key], self.hashes[number], kind)
