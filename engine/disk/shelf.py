"""Which blocks are on disk, in which files, and which of these go when there are too many bytes.

The owner with the most bytes loses its least recently used files, so nobody's go for those of one
who has more. Using a file uses those that it continues: they go after it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from engine.disk.files import NO_PARENT
from engine.disk.folder import KeptFile


class Spot(NamedTuple):
    """Where a block is on disk."""

    file: KeptFile
    number: int


class Shelf:
    """The files that there are, `most_bytes` at most. It never touches the disk."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._owners: dict[str, OrderedDict[Path, KeptFile]] = {}
        """Each owner's files, least recently used first."""
        self._bytes: Counter[str] = Counter()
        self.kv_bytes_by_owner: Counter[str] = Counter()
        """What blocks in files take of memory, by the names of their owners' folders."""
        self._spots: dict[bytes, Spot] = {}

    def __len__(self) -> int:
        return sum(map(len, self._owners.values()))

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return self._bytes.total()

    @property
    def owners(self) -> set[str]:
        """Who has files, by the names of their folders."""
        return set(self._owners)

    @property
    def files(self) -> Iterator[KeptFile]:
        """All of them."""
        return (file for files in self._owners.values() for file in files.values())

    @property
    def paths(self) -> set[Path]:
        """Of all files."""
        return {file.path for file in self.files}

    def find(self, name: bytes) -> Spot | None:
        """Where the block of that name is."""
        return self._spots.get(name)

    def add(self, file: KeptFile) -> None:
        """A file has come; its owner's most recently used one."""
        self._owners.setdefault(file.owner, OrderedDict())[file.path] = file
        self._bytes[file.owner] += file.num_bytes
        self.kv_bytes_by_owner[file.owner] += file.head.kv_bytes
        for number, name in enumerate(file.head.names):
            self._spots.setdefault(name, Spot(file, number))
        self.use(file, file.used)

    def use(self, file: KeptFile, now: float) -> list[KeptFile]:
        """A file's blocks were used, and so those that it continues; returns all of these files.

        None for one that is not here any more.
        """
        if file.path not in self._owners.get(file.owner, {}):
            return []
        chain = [file]
        while (parent := self._parent(chain[-1])) is not None and parent not in chain:
            chain.append(parent)
        for one in chain:
            one.used = max(one.used, now)
            self._owners[one.owner].move_to_end(one.path)
        return chain

    def drop(self, file: KeptFile) -> None:
        """A file is gone, or is to go. Unknown ones are fine."""
        files = self._owners.get(file.owner, OrderedDict())
        if files.pop(file.path, None) is None:
            return
        self._bytes[file.owner] -= file.num_bytes
        self.kv_bytes_by_owner[file.owner] -= file.head.kv_bytes
        if not files:
            del (
                self._owners[file.owner],
                self._bytes[file.owner],
                self.kv_bytes_by_owner[file.owner],
            )
        for name in file.head.names:
            if name in self._spots and self._spots[name].file is file:
                del self._spots[name]

    def drop_owner(self, owner: str) -> None:
        """All of an owner's files are to go."""
        for file in list(self._owners.get(owner, {}).values()):
            self.drop(file)

    def drop_expired(self, now: float) -> list[KeptFile]:
        """Take out what is past its time, and return it."""
        expired = [file for file in self.files if file.until < now]
        for file in expired:
            self.drop(file)
        return expired

    def make_room(
        self, num_bytes: int, owner: str, until: float, look: int
    ) -> list[KeptFile] | None:
        """Take out what has to go for a file of `owner` that is kept `until` then; returns it.

        `None`, and nothing is taken out, where there is no room for it: what the `look` has found
        to be kept as well goes for another owner that has less, and within an owner for what is
        kept for longer. So no two files take turns.
        """
        sizes = Counter(self._bytes)
        missing = self.num_bytes + num_bytes - self._most_bytes
        victims: dict[KeptFile, None] = {}
        while missing > 0:
            richest = max(sizes, key=sizes.__getitem__, default=owner)
            from_other = sizes[owner] + num_bytes < sizes[richest]
            loser = richest if from_other else owner
            victim = next(
                (
                    file
                    for file in self._owners.get(loser, {}).values()
                    if file not in victims
                    and (from_other or file.look != look or file.until < until)
                ),
                None,
            )
            if victim is None:
                return None
            victims[victim] = None
            sizes[loser] -= victim.num_bytes
            missing -= victim.num_bytes
        for file in victims:
            self.drop(file)
        return list(victims)

    def shrink(self) -> list[KeptFile]:
        """Take out what is too much, the least recently used of who has most; returns it."""
        victims: list[KeptFile] = []
        while self.num_bytes > self._most_bytes:
            ((owner, _),) = self._bytes.most_common(1)
            victims.append(next(iter(self._owners[owner].values())))
            self.drop(victims[-1])
        return victims

    def check(self) -> None:
        """Verify the books. Raises `AssertionError`."""
        for owner, files in self._owners.items():
            assert files, f"{owner} is kept for nothing"
            assert sum(file.num_bytes for file in files.values()) == self._bytes[owner], "bytes"
            for path, file in files.items():
                assert (file.path, file.owner) == (path, owner), "a file is not where it belongs"
            kv_bytes = sum(file.head.kv_bytes for file in files.values())
            assert kv_bytes == self.kv_bytes_by_owner[owner], "blocks"
        assert self._bytes.keys() == self.kv_bytes_by_owner.keys() == self._owners.keys(), "owners"
        files_known = set(self.files)
        for name, (file, number) in self._spots.items():
            assert file in files_known, "a block of no file"
            assert file.head.names[number] == name, "a block is elsewhere"

    def _parent(self, file: KeptFile) -> KeptFile | None:
        if file.head.parent == NO_PARENT:
            return None
        spot = self._spots.get(file.head.parent)
        return None if spot is None else spot.file
