"""Brings blocks to disk that are to be kept: a look through the pool now and then, and at the end.

The engine's loop looks at a few blocks at a time, and copies a portion of them at a time; a thread
seals and writes it, and only then the next one is copied.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from engine.disk.files import NO_PARENT, Head, block_name, name_key, new_salt, write_file
from engine.disk.folder import Folder, KeptFile, disk_bytes, mark, remove
from engine.disk.memory import BlockMemory, Fetched
from engine.disk.shelf import Shelf
from engine.schedule.scheduler import Scheduler

_log = logging.getLogger(__name__)
_LOOKED_AT: Final = 512
"""Blocks, by one call: a millisecond or two where all of them are to be kept."""
PORTION_BYTES: Final = 8 << 20
"""Copied by one call, and so the most of a file: a millisecond or two."""
_PINNED_SECONDS: Final = 30 * 86_400.0
"""How long a pinned prompt's blocks stay on disk once nobody pins them any more."""
_RENEWED_SHARE: Final = 0.1
"""Of the time for which a file is kept: when so much of it is gone, it is written down anew."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A block of the pool that is to be kept and is not on disk."""

    block: int
    block_hash: bytes
    name: bytes
    parent_hash: bytes
    namespace_key: bytes
    owner: str
    lease_seconds: float
    """As in a file's head."""
    until: float
    """In seconds of the wall clock."""

    def may_follow(self, other: Candidate) -> bool:
        """Whether both may be in one file."""
        return (self.namespace_key, self.owner, self.lease_seconds) == (
            other.namespace_key,
            other.owner,
            other.lease_seconds,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks that follow each other in a chain, whose block number `depth` is the first."""

    parent: bytes
    """The name of what the first one continues."""
    depth: int
    blocks: list[Candidate]

    @property
    def until(self) -> float:
        """As long as any of them."""
        return max(one.until for one in self.blocks)


def make_runs(
    candidates: Iterable[Candidate], on_disk: Mapping[bytes, tuple[bytes, int]], most_blocks: int
) -> list[Run]:
    """Runs of at most `most_blocks`, each behind the one that it continues.

    `on_disk` has the blocks that are there already: by hash, their names and their numbers in the
    chain. What continues neither these nor a chain's beginning could never be found, and is left.
    """
    children: dict[bytes, list[Candidate]] = {}
    for one in candidates:
        children.setdefault(one.parent_hash, []).append(one)
    heads = deque(
        (name, depth + 1, child)
        for parent, (name, depth) in on_disk.items()
        for child in children.get(parent, ())
    )
    roots = (parent for parent in children if not any(parent))
    heads.extend((NO_PARENT, 0, child) for parent in roots for child in children[parent])
    runs: list[Run] = []
    while heads:
        parent, depth, last = heads.popleft()
        blocks = [last]
        following = children.get(last.block_hash, ())
        while len(blocks) < most_blocks and len(following) == 1 and following[0].may_follow(last):
            last = following[0]
            blocks.append(last)
            following = children.get(last.block_hash, ())
        runs.append(Run(parent, depth, blocks))
        heads.extend((last.name, depth + len(blocks), child) for child in following)
    return runs


class Keep(NamedTuple):
    """Why and for how long a block is to be kept."""

    seconds: float
    """From now on."""
    lease_seconds: float
    """As in a file's head."""
    owner: str
    """Whose file it is to be in: who leases it, whoever computed it."""


@dataclass(slots=True)
class _Writing:
    run: Run
    head: Head
    fetched: Fetched
    written: Future[KeptFile] | None = None
    is_wanted: bool = True


class Saver:
    """Looks through a pool, and writes what is to be kept and not on the shelf yet."""

    def __init__(
        self,
        scheduler: Scheduler,
        memory: BlockMemory,
        shelf: Shelf,
        folder: Folder,
        layout: bytes,
        disk: Executor,
    ) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.pool
        self._memory = memory
        self._shelf = shelf
        self._folder = folder
        self._layout = layout
        self._disk = disk
        self._most_blocks = max(1, PORTION_BYTES // memory.block_bytes)
        self._look = 0
        """The number of the newest look through the pool."""
        self._next: int | None = None
        """The block to be looked at next; `None` between two looks through the pool."""
        self._name_keys: dict[bytes, bytes] = {}
        self._candidates: list[Candidate] = []
        self._on_disk: dict[bytes, tuple[bytes, int]] = {}
        self._renewed: dict[KeptFile, float] = {}
        self._runs: deque[Run] = deque()
        self._writing: _Writing | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is more to look at or to write."""
        return self._next is not None or bool(self._runs) or self._writing is not None

    @property
    def awaited(self) -> Future[KeptFile] | None:
        """What there is nothing to do before."""
        return None if self._writing is None else self._writing.written

    def begin(self) -> None:
        """Look through the pool from its first block on, unless that is under way."""
        if not self.is_busy:
            self._look += 1
            self._next = 0

    def advance(self) -> None:
        """Do a little of what there is to do."""
        if self._next is not None:
            self._look_on(self._next)
        elif self._writing is not None:
            self._go_on(self._writing)
        elif self._runs:
            self._start(self._runs.popleft())

    def forget_owner(self, owner: str) -> None:
        """Begin to write no more of an owner's blocks; who calls has the thread remove the rest."""
        self._candidates = [one for one in self._candidates if one.owner != owner]
        self._runs = deque(run for run in self._runs if run.blocks[0].owner != owner)
        if self._writing is not None and self._writing.run.blocks[0].owner == owner:
            self._writing.is_wanted = False

    def _look_on(self, first: int) -> None:
        end = min(first + _LOOKED_AT, self._pool.num_blocks)
        unsettled, now = self._scheduler.unsettled(), time.time()
        for block in range(first, end):
            block_hash = self._pool.hash_of(block)
            keep = None if block_hash is None else self._wish(block)
            if block_hash is not None and keep is not None and block not in unsettled:
                self._consider(block, block_hash, keep, now)
        self._next = end
        if end == self._pool.num_blocks:
            self._next = None
            self._end_look(now)

    def _wish(self, block: int) -> Keep | None:
        """Whether a findable block is to be kept."""
        if block in self._scheduler.pins.references:
            return Keep(_PINNED_SECONDS, 0.0, self._pool.owners[block])
        lease = self._pool.leases.longest(block)
        return None if lease is None else Keep(*lease)

    def _consider(self, block: int, block_hash: bytes, keep: Keep, now: float) -> None:
        where = self._scheduler.tiers.partial_hits.place_of(block)
        if where is None:
            return  # found by an equal block's tokens, which is gone
        key = self._name_keys.get(where.namespace_key)
        if key is None:
            key = self._name_keys[where.namespace_key] = name_key(where.namespace_key)
        name, until = block_name(key, block_hash), now + keep.seconds
        spot = self._shelf.find(name)
        if spot is not None:
            spot.file.look = self._look
            self._on_disk[block_hash] = name, spot.file.head.depth + spot.number
            if until - spot.file.until > _RENEWED_SHARE * keep.seconds:
                self._renewed[spot.file] = max(until, self._renewed.get(spot.file, 0.0))
            return
        self._candidates.append(
            Candidate(
                block=block,
                block_hash=block_hash,
                name=name,
                parent_hash=where.parent_hash,
                namespace_key=where.namespace_key,
                owner=keep.owner,
                lease_seconds=keep.lease_seconds,
                until=until,
            )
        )

    def _end_look(self, now: float) -> None:
        """All that is to be kept is known: renew files, and make runs of what is in none."""
        for file, until in self._renewed.items():
            file.until = until
            self._mark(self._shelf.use(file, now))
        expired = self._shelf.drop_expired(now)
        if expired:
            self._disk.submit(remove, expired)
        self._runs = deque(make_runs(self._candidates, self._on_disk, self._most_blocks))
        self._candidates, self._on_disk = [], {}
        self._renewed, self._name_keys = {}, {}

    def _start(self, run: Run) -> None:
        """Copy a run whose blocks are still what they were when they were looked at."""
        unsettled = self._scheduler.unsettled()
        if any(
            self._pool.hash_of(one.block) != one.block_hash or one.block in unsettled
            for one in run.blocks
        ):
            return
        head, owner, now = self._head(run), run.blocks[0].owner, time.time()
        size = disk_bytes(len(run.blocks) * head.sealed_bytes)
        # What is renewed has to be a good deal older to make room.
        until = now + (1 - _RENEWED_SHARE) * (run.until - now)
        victims = self._shelf.make_room(size, self._folder.of_owner(owner), until, self._look)
        if victims is None:
            # What continues it would be of no use.
            self._runs = deque(one for one in self._runs if one.blocks[0].owner != owner)
            return
        self._disk.submit(remove, victims)
        fetched = self._memory.fetch([one.block for one in run.blocks])
        self._writing = _Writing(run, head, fetched)

    def _head(self, run: Run) -> Head:
        return Head(
            layout=self._layout,
            salt=new_salt(),
            parent=run.parent,
            depth=run.depth,
            lease_seconds=run.blocks[0].lease_seconds,
            block_bytes=self._memory.block_bytes,
            names=tuple(one.name for one in run.blocks),
        )

    def _go_on(self, writing: _Writing) -> None:
        if writing.written is None:
            if not writing.is_wanted:
                self._writing = None
            elif writing.fetched.is_there():
                # Of now: who is forgotten from here on has it removed behind this.
                owner = self._folder.of_owner(writing.run.blocks[0].owner)
                work = partial(_write_down, self._folder, owner, writing.run, writing.head)
                writing.written = self._disk.submit(work, writing.fetched.images)
        elif writing.written.done():
            self._writing = None
            try:
                file = writing.written.result()
                if writing.is_wanted:
                    file.look = self._look
                    self._shelf.add(file)
            except OSError as error:
                # Nor would there be room for the others; the next look finds them again.
                self._runs.clear()
                _log.warning("blocks cannot be kept on disk: %s", error)

    def _mark(self, files: list[KeptFile]) -> None:
        self._disk.submit(mark, [(file.path, file.used, file.until) for file in files])


def _write_down(
    folder: Folder, owner: str, run: Run, head: Head, images: list[memoryview]
) -> KeptFile:
    """Write a file into the folder of that name. Raises `OSError`."""
    first, now = run.blocks[0], time.time()
    path = folder.new_path(owner, head.salt)
    size = write_file(path, head, first.namespace_key, images, (now, run.until))
    return KeptFile(path, head, disk_bytes(size), now, run.until)
