"""From blocks that are to be kept to runs of them: what one file holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.disk.files import NO_PARENT


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
