"""What a step moves between blocks, and to the host and back, before it computes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from engine.blocks.pool import BlockPool


@dataclass(frozen=True, slots=True)
class Transfers:
    """Moves of whole pages, done in this order before the forward pass, each list in one call.

    They read what earlier steps have computed, never what the same step computes. No page, here or
    in the host's memory, is a target twice.
    """

    swap_outs: list[tuple[int, int]] = field(default_factory=list)
    """(page, page of the host's)"""
    swap_ins: list[tuple[int, int]] = field(default_factory=list)
    """(page of the host's, page)"""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source page, target page)"""


class TransferQueue:
    """Collects the transfers of the step that is being planned.

    It holds whatever they read or write behind a group's back until `settle` or `abandon`, so that
    nothing else goes there within the same step.
    """

    def __init__(self, pool: BlockPool, host: BlockPool) -> None:
        self._pool = pool
        self._host = host
        self._swap_outs: list[tuple[int, int]] = []
        self._swap_ins: list[tuple[int, int]] = []
        self._filled: set[int] = set()
        """The blocks that are to be copied from slots."""
        self._sources: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        """Of these copies (source by target) the queue holds the source, which was given back."""
        self._held_blocks: list[int] = []
        self.held_slots: list[int] = []
        self._written_slots: list[int] = []
        self.num_swapped_out = 0
        """Pages."""
        self.num_swapped_in = 0
        """Pages."""

    @property
    def held_blocks(self) -> list[int]:
        """One entry for each reference to a block."""
        return [*self._held_blocks, *self._kept.values()]

    @property
    def sources(self) -> list[int]:
        """The blocks that are to be copied."""
        return list(self._sources.values())

    def fills(self, blocks: Iterable[int]) -> bool:
        """Whether some of these are to be copied from slots, and do not hold anything before."""
        return not self._filled.isdisjoint(blocks)

    def swap_out(self, block: int, slot: int) -> None:
        """Copy a block, as it was before this step, to a slot."""
        self._hold_slot(slot)
        self._written_slots.append(slot)
        # What a copy of this same step is to put there is still where it comes from. The pages are
        # those of now: by the step they may be of another block.
        source = self._sources.get(block, block)
        self._swap_outs += _pages(self._pool, source, self._host, slot)

    def swap_in(self, slot: int, block: int) -> None:
        """Copy a slot, as it is after this step's swaps to the host, to a block."""
        self._hold_slot(slot)
        self._swap_ins += _pages(self._host, slot, self._pool, block)
        self._filled.add(block)

    def copy(self, source: int, target: int) -> None:
        """Copy a block, whose holders call `give_back` before they release it."""
        self._sources[target] = source

    def copy_held(self, source: int, target: int) -> None:
        """Copy a block that belongs to others, who may give it back meanwhile."""
        self._pool.acquire([source])
        self._held_blocks.append(source)
        self.copy(source, target)

    def give_back(self, blocks: Iterable[int]) -> None:
        """Somebody is about to release these blocks: copies to those that nobody else holds are not
        wanted any more, and what is to be copied from them to others stays as it is until then.
        What slots are to fill stays, too, so that nothing else goes there.
        """
        if not (self._sources or self._filled):
            return
        given = Counter(blocks)
        filled = given.keys() & self._filled
        self._filled -= filled
        self._pool.acquire(filled)
        self._held_blocks += filled
        for target, source in list(self._sources.items()):
            if given[target] and given[target] == self._pool.references[target]:
                del self._sources[target]
                if target in self._kept:
                    self._pool.release([self._kept.pop(target)])
            elif source in given and target not in self._kept:
                self._pool.acquire([source])
                self._kept[target] = source

    def move_evicted(self, move: Callable[[Transfers], None]) -> None:
        """Have it done now if what was evicted is to be copied to the host: blocks that were taken
        since may be filled at once.
        """
        if self._swap_outs:
            move(self.take())
            self.settle()

    def take(self) -> Transfers:
        """Everything since the last call."""
        copies: list[tuple[int, int]] = []
        for target, source in self._sources.items():
            copies += _pages(self._pool, source, self._pool, target)
        transfers = Transfers(self._swap_outs, self._swap_ins, copies)
        self.num_swapped_out += len(self._swap_outs)
        self.num_swapped_in += len(self._swap_ins)
        self._forget_queued()
        return transfers

    def settle(self) -> None:
        """The step has been computed: let go of what its transfers held."""
        self._pool.release(self._held_blocks)
        self._host.release(self.held_slots)
        self._held_blocks, self.held_slots, self._written_slots = [], [], []

    def abandon(self) -> None:
        """The step has failed: nobody may find what it was to copy to the host."""
        self._host.forget(self._written_slots)
        self._forget_queued()
        self.settle()

    def _forget_queued(self) -> None:
        self._held_blocks += self._kept.values()
        self._swap_outs, self._swap_ins, self._filled = [], [], set()
        self._sources, self._kept = {}, {}

    def _hold_slot(self, slot: int) -> None:
        self._host.acquire([slot])
        self.held_slots.append(slot)


def _pages(
    pool: BlockPool, source: int, other: BlockPool, target: int
) -> Iterator[tuple[int, int]]:
    """What is copied of a block: (source page, target page)."""
    return zip(pool.pages_of(source), other.pages_of(target), strict=True)
