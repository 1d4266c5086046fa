"""What a step moves between blocks, and to the host and back, before it computes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.blocks.pool import BlockPool


@dataclass(frozen=True, slots=True)
class Transfers:
    """Moves of whole blocks, done in this order before the forward pass, each list in one call.

    They read what earlier steps have computed, never what the same step computes. No block and no
    slot is a target twice.
    """

    swap_outs: list[tuple[int, int]] = field(default_factory=list)
    """(block, host slot)"""
    swap_ins: list[tuple[int, int]] = field(default_factory=list)
    """(host slot, block)"""
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
        self._sources: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        """Of these copies (source by target) the queue holds the source, which was given back."""
        self._held_blocks: list[int] = []
        self.held_slots: list[int] = []
        self._written_slots: list[int] = []
        self.num_swapped_out = 0
        self.num_swapped_in = 0

    @property
    def held_blocks(self) -> list[int]:
        """One entry for each reference to a block."""
        return [*self._held_blocks, *self._kept.values()]

    @property
    def sources(self) -> list[int]:
        """The blocks that are to be copied."""
        return list(self._sources.values())

    @property
    def has_swap_outs(self) -> bool:
        """Whether blocks are to be copied to the host that may be somebody else's by now."""
        return bool(self._swap_outs)

    def swap_out(self, block: int, slot: int) -> None:
        """Copy a block, as it was before this step, to a slot."""
        self._hold_slot(slot)
        self._written_slots.append(slot)
        # What a copy of this same step is to put there is still where it comes from.
        self._swap_outs.append((self._sources.get(block, block), slot))

    def swap_in(self, slot: int, block: int) -> None:
        """Copy a slot, as it is after this step's swaps to the host, to a block."""
        self._hold_slot(slot)
        self._swap_ins.append((slot, block))

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
        """
        if not self._sources:
            return
        given = Counter(blocks)
        for target, source in list(self._sources.items()):
            if given[target] and given[target] == self._pool.references[target]:
                del self._sources[target]
                if target in self._kept:
                    self._pool.release([self._kept.pop(target)])
            elif source in given and target not in self._kept:
                self._pool.acquire([source])
                self._kept[target] = source

    def take(self) -> Transfers:
        """Everything since the last call."""
        copies = [pages for pair in self._sources.items() for pages in self._pages(*pair)]
        transfers = Transfers(self._swap_outs, self._swap_ins, copies)
        self.num_swapped_out += len(self._swap_outs)
        self.num_swapped_in += len(self._swap_ins)
        self._forget_queued()
        return transfers

    def _pages(self, target: int, source: int) -> Iterator[tuple[int, int]]:
        """What is copied of a block: (source page, target page)."""
        return zip(self._pool.pages_of(source), self._pool.pages_of(target), strict=True)

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
        self._swap_outs, self._swap_ins = [], []
        self._sources, self._kept = {}, {}

    def _hold_slot(self, slot: int) -> None:
        self._host.acquire([slot])
        self.held_slots.append(slot)
