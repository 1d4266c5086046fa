"""What hits can use from now on and what no more, in order: for whoever routes by it.

Readers count the blocks of a prompt that they were told of, from its first one to where one is
missing, and take that for what a request would find. Where layers come to forget blocks it is
neither what there is of one kind nor of all: what lies before a window need not be there, and is of
no use where the window is gone. So a block is told of while a request can go on behind it, or
behind one that follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.api import Kind, Loss
from engine.blocks.listeners import Listener
from engine.blocks.partial_hits import Place


class Change(NamedTuple):
    """A full block that hits can use from now on, or not any more."""

    block_hash: bytes
    is_stored: bool
    parent: bytes | None = None
    """The hash of the stored block before it in its chain; `None`: it is the first."""


class Changes(Listener):
    """Of a pool with blocks of one kind, that sees everything: those that can be found."""

    def __init__(self) -> None:
        self._changes: list[Change] = []

    def stored(
        self,
        _block: int,
        block_hash: bytes | None,
        where: Place | None,
        parent: bytes | None,
        _kind: int,
    ) -> None:
        """See `Listener`."""
        if block_hash is not None:
            self._changes.append(Change(block_hash, True, _parent(where, parent)))

    def lost(
        self,
        _block: int,
        block_hash: bytes | None,
        _owner: str,
        _why: Loss | None,
        _kind: int,
        _by: str,
    ) -> None:
        """See `Listener`."""
        if block_hash is not None:
            self._changes.append(Change(block_hash, False))

    def take(self) -> list[Change]:
        """What has changed since the last call."""
        changes, self._changes = self._changes, []
        return changes


@dataclass(slots=True)
class _Node:
    """A block of a chain, of all kinds; it is kept while one is there, or a node follows it."""

    parent: bytes | None = None
    index: int = 0
    """In the chain."""
    kinds: int = 0
    """A bit for each kind of which it can be found."""
    num_children: int = 0
    num_told: int = 0
    """Of these, those that are told of."""
    is_told: bool = False


class ResumableChanges(Changes):
    """Of a pool with kinds that forget. A change takes constant time, but for each block that is
    told of by it, or no more.

    Who goes on behind a block needs those in its window, of which the last one stands for all: of a
    sequence that one is evicted first.
    """

    def __init__(self, kinds: Sequence[Kind], block_size: int) -> None:
        super().__init__()
        self._kinds = kinds
        self._block_size = block_size
        self._whole = sum(1 << number for number, kind in enumerate(kinds) if not kind.forgets)
        self._nodes: dict[bytes, _Node] = {}

    def stored(
        self,
        _block: int,
        block_hash: bytes | None,
        where: Place | None,
        parent: bytes | None,
        kind: int,
    ) -> None:
        """See `Listener`."""
        if block_hash is not None:
            node = self._nodes.setdefault(block_hash, _Node())
            if node.parent is None:
                self._link(node, _parent(where, parent))
            node.kinds |= 1 << kind
            self._look_again(block_hash, node)

    def lost(
        self,
        _block: int,
        block_hash: bytes | None,
        _owner: str,
        _why: Loss | None,
        kind: int,
        _by: str,
    ) -> None:
        """See `Listener`."""
        if block_hash is not None:
            node = self._nodes[block_hash]
            node.kinds &= ~(1 << kind)
            self._look_again(block_hash, node)
            self._drop_unused(block_hash)

    def check(self) -> None:
        """Verify the books. Raises `AssertionError`."""
        for block_hash, node in self._nodes.items():
            children = [one for one in self._nodes.values() if one.parent == block_hash]
            assert node.num_children == len(children), "children are miscounted"
            assert node.num_told == sum(one.is_told for one in children), "told of are miscounted"
            assert node.is_told == self._is_of_use(node), "something else was told"
            assert node.kinds or children, "a node is kept for nothing"

    def _link(self, node: _Node, parent: bytes | None) -> None:
        """The block follows that one, if any, of which nothing may be known any more."""
        if parent is not None:
            before = self._nodes.setdefault(parent, _Node())
            before.num_children += 1
            node.parent, node.index = parent, before.index + 1
            if node.is_told:
                before.num_told += 1
                self._look_again(parent, before)

    def _is_of_use(self, node: _Node) -> bool:
        if node.kinds & self._whole != self._whole:
            return False
        return node.num_told > 0 or (node.kinds > 0 and self._is_resumable(node))

    def _is_resumable(self, node: _Node) -> bool:
        """Whether a request can go on behind it, if it can behind the one before it."""
        num_tokens = (node.index + 1) * self._block_size
        return all(
            node.kinds >> number & 1 or not kind.seen(num_tokens, self._block_size)
            for number, kind in enumerate(self._kinds)
        )

    def _look_again(self, block_hash: bytes, node: _Node) -> None:
        """Tell of a block, or no more, and of those before it for which that makes a difference."""
        changes: list[Change] = []
        while (is_told := self._is_of_use(node)) != node.is_told:
            node.is_told = is_told
            changes.append(Change(block_hash, is_told, node.parent if is_told else None))
            if node.parent is None:
                break
            block_hash, node = node.parent, self._nodes[node.parent]
            node.num_told += 1 if is_told else -1
        if changes and changes[0].is_stored:
            changes.reverse()  # a block is told of before those that follow it
        self._changes += changes

    def _drop_unused(self, block_hash: bytes | None) -> None:
        while block_hash is not None:
            node = self._nodes[block_hash]
            if node.kinds or node.num_children:
                return
            del self._nodes[block_hash]
            block_hash = node.parent
            if block_hash is not None:
                self._nodes[block_hash].num_children -= 1


def changes_of(kinds: Sequence[Kind], block_size: int) -> Changes:
    """Of a pool with blocks of these kinds."""
    forgets = any(kind.forgets for kind in kinds)
    return ResumableChanges(kinds, block_size) if forgets else Changes()


def _parent(where: Place | None, parent: bytes | None) -> bytes | None:
    """The hash of the block before the one that was stored."""
    parent = parent if where is None else where.parent_hash
    return None if parent is None or not any(parent) else parent
