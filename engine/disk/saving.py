"""Brings blocks to disk that are to be kept: a look through the pool now and then, and at the end.

The engine's loop looks at a few blocks at a time, and copies a portion of them at a time; a thread
seals and writes it, and only then the next one is copied.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from engine.blocks.partial_hits import Place
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
    kind: int
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
    """Blocks of a kind that follow each other in a chain; the first is its number `depth`."""

    parent: bytes
    """The name of what the first one continues."""
    depth: int
    blocks: list[Candidate]

    @property
    def until(self) -> float:
        """As long as any of them."""
        return max(one.until for one in self.blocks)


def make_runs(
    candidates: Sequence[Candidate],
    on_disk: Mapping[bytes, tuple[bytes, int]],
    most_blocks: int,
    *,
    forgets: bool = False,
) -> list[Run]:
    """Runs of at most `most_blocks` of one kind, each behind the one that it continues.

    `on_disk` has the blocks that are there already, or are to be: by hash, their names and their
    numbers in the chain. What continues neither these nor a chain's beginning could never be found,
    and is left; unless all kinds `forget`, and nobody needs what it continues.
    """
    children: dict[bytes, list[Candidate]] = {}
    for one in candidates:
        children.setdefault(one.parent_hash, []).append(one)
    heads: deque[tuple[bytes, int, Candidate]] = deque()
    own = {one.block_hash for one in candidates}
    for parent_hash, following in children.items():
        if parent_hash not in own and (parent_hash in on_disk or forgets or not any(parent_hash)):
            parent, depth = on_disk.get(parent_hash, (NO_PARENT, -1))
            heads.extend((parent, depth + 1, child) for child in following)
    runs: list[Run] = []
    while heads:
        parent, depth, last = heads.popleft()
        blocks = [last]
        following = children.get(last.block_hash, [])
        while len(blocks) < most_blocks and len(following) == 1 and following[0].may_follow(last):
            last = following[0]
            blocks.append(last)
            following = children.get(last.block_hash, [])
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
        self._bytes = [kind.pages * memory.page_bytes for kind in self._pool.kinds]
        """Of a block of each kind."""
        self._look = 0
        """The number of the newest look through the pool."""
        self._next: int | None = None
        """The page to be looked at next; `None` between two looks through the pool."""
        self._name_keys: dict[bytes, bytes] = {}
        self._candidates: list[Candidate] = []
        self._on_disk: dict[bytes, tuple[bytes, int]] = {}
        """Blocks of the first kind, as for `make_runs`."""
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
        end = min(first + _LOOKED_AT, self._pool.num_pages)
        unsettled, now = self._scheduler.unsettled(), time.time()
        for block in range(first, end):
            block_hash = self._pool.hash_of(block)
            keep = None if block_hash is None else self._wish(block)
            if block_hash is not None and keep is not None and block not in unsettled:
                self._consider(block, block_hash, keep, unsettled, now)
        self._next = end
        if end == self._pool.num_pages:
            self._next = None
            self._end_look(now)

    def _wish(self, block: int) -> Keep | None:
        """Whether a findable block is to be kept."""
        if block in self._scheduler.pins.references:
            return Keep(_PINNED_SECONDS, 0.0, self._pool.owners[block])
        lease = self._pool.leases.longest(block)
        return None if lease is None else Keep(*lease)

    def _consider(
        self, block: int, block_hash: bytes, keep: Keep, unsettled: set[int], now: float
    ) -> None:
        """A block of the first kind, and those beside it, which are of use with it alone."""
        where = self._scheduler.tiers.partial_hits.place_of(block)
        if where is None:
            return  # found by an equal block's tokens, which is gone
        self._note(block, 0, block_hash, where, keep, now)
        for kind in range(1, len(self._bytes)):
            for other in self._pool.find([block_hash], kind):
                wish = None if other in unsettled else self._wish(other)
                if wish is not None:
                    self._note(other, kind, block_hash, where, wish, now)

    def _note(
        self, block: int, kind: int, block_hash: bytes, where: Place, keep: Keep, now: float
    ) -> None:
        """A block is to be kept, and may be on disk."""
        key = self._name_keys.get(where.namespace_key)
        if key is None:
            key = self._name_keys[where.namespace_key] = name_key(where.namespace_key)
        name, until = block_name(key, block_hash, kind), now + keep.seconds
        spot = self._shelf.find(name)
        if spot is not None:
            spot.file.look = self._look
            if not kind:
                self._on_disk[block_hash] = name, spot.file.head.depth + spot.number
            if until - spot.file.until > _RENEWED_SHARE * keep.seconds:
                self._renewed[spot.file] = max(until, self._renewed.get(spot.file, 0.0))
            return
        self._candidates.append(
            Candidate(
                block=block,
                kind=kind,
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
        self._runs = deque(self._make_runs())
        self._candidates, self._on_disk = [], {}
        self._renewed, self._name_keys = {}, {}

    def _make_runs(self) -> list[Run]:
        """Those of the first kind in their order, and behind each the others' that lie beside it,
        or end there: what there is room for is of use.
        """
        kept, forgets = self._on_disk, self._pool.kinds[0].forgets
        runs: list[Run] = []
        order: dict[bytes, int] = {}
        for kind, size in enumerate(self._bytes):
            own = [one for one in self._candidates if one.kind == kind]
            if kind:
                own = [one for one in own if one.block_hash in kept]
            runs += make_runs(own, kept, max(1, PORTION_BYTES // size), forgets=forgets)
            for number, run in enumerate(runs if kind == 0 else (), 1):
                for depth, one in enumerate(run.blocks, run.depth):
                    kept[one.block_hash] = one.name, depth
                    order[one.block_hash] = number
        return sorted(runs, key=lambda run: order.get(run.blocks[-1].block_hash, 0))

    def _start(self, run: Run) -> None:
        """Copy a run whose blocks are still what they were when they were looked at."""
        unsettled = self._scheduler.unsettled()
        if any(
            self._pool.find([one.block_hash], one.kind) != [one.block] or one.block in unsettled
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
        fetched = self._memory.fetch([self._pool.pages_of(one.block) for one in run.blocks])
        self._writing = _Writing(run, head, fetched)

    def _head(self, run: Run) -> Head:
        return Head(
            layout=self._layout,
            salt=new_salt(),
            parent=run.parent,
            depth=run.depth,
            lease_seconds=run.blocks[0].lease_seconds,
            block_bytes=self._bytes[run.blocks[0].kind],
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
