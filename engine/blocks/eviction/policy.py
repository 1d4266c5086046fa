"""In which order cached blocks lose their memory: policies behind one interface.

An order holds the *candidates* (cached blocks that anyone may evict) and remembers which blocks
were used again. It knows neither owners nor reserves. Every operation takes constant time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from engine.api import Kind
from engine.blocks.eviction.worth import ByWorth, Purpose

Eviction = Literal["arc", "lru"]

_ONCE_GHOSTS: Final = 3
_AGAIN_GHOSTS: Final = 1
"""How many keys are remembered, per block of the pool."""


class Order(Protocol):
    """The candidates, and what was learnt of them."""

    def __len__(self) -> int:
        """How many candidates there are."""

    def add(self, block: int, key: bytes, *, oldest: bool = False) -> None:
        """A candidate, the most recently used one; `key` tells its contents from all others.

        With `oldest`: the least recently used one.
        """

    def remove(self, block: int) -> bytes:
        """Take a candidate out, which keeps its contents; returns its key."""

    def least(self) -> tuple[int, bool]:
        """The candidate whose contents are worth least, and whether they are of no use at all."""

    def evict(self) -> int:
        """Take out that candidate, which then loses them."""

    def used_again(self, block: int) -> None:
        """What the block holds was hit. It is no candidate now; to be added anew counts."""

    def stored(
        self, block: int, key: bytes, kind: int, parent: bytes | None, owner: str, purpose: Purpose
    ) -> None:
        """A block in use can be found now, by `key`; if it holds keys, it follows `parent`. A state
        was left for a `purpose`."""

    def lost(self, block: int) -> None:
        """The block cannot be found any more. It is no candidate now."""

    def came_back(self, hashes: Sequence[bytes], num_found: int) -> Sequence[int]:
        """A prompt whose full blocks have these hashes is computed but for `num_found` of them.
        Returns behind how many more there have been states that would have been of use.
        """

    def candidates(self) -> dict[int, bytes]:
        """Every candidate with its key. Verifies the books on the way, in linear time.

        Raises `AssertionError`.
        """


class _Listless:
    """Of an order to which it is the same how blocks hang together."""

    def stored(
        self, block: int, key: bytes, kind: int, parent: bytes | None, owner: str, purpose: Purpose
    ) -> None:
        """See `Order`."""

    def came_back(self, hashes: Sequence[bytes], num_found: int) -> Sequence[int]:  # noqa: ARG002
        """See `Order`."""
        return ()


class LeastRecentlyUsed(_Listless):
    """Whoever has waited longest goes first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        """See `Order`."""
        return len(self._blocks)

    def add(self, block: int, key: bytes, *, oldest: bool = False) -> None:
        """See `Order`."""
        self._blocks[block] = key
        if oldest:
            self._blocks.move_to_end(block, last=False)

    def remove(self, block: int) -> bytes:
        """See `Order`."""
        return self._blocks.pop(block)

    def least(self) -> tuple[int, bool]:
        """See `Order`."""
        return next(iter(self._blocks)), False

    def evict(self) -> int:
        """See `Order`."""
        return self._blocks.popitem(last=False)[0]

    def used_again(self, block: int) -> None:
        """See `Order`: to be added anew counts."""

    def lost(self, block: int) -> None:
        """See `Order`."""

    def candidates(self) -> dict[int, bytes]:
        """See `Order`."""
        return dict(self._blocks)


class AdaptiveReplacement(_Listless):
    """ARC (Megiddo and Modha, FAST 2003): a burst of new prompts cannot flush what is used again.

    Candidates wait in two queues, each least recently used first: used *once* (computed, then
    never hit) and used *again*. Of an evicted block only the key stays, as a *ghost*. Contents
    that are computed while their ghost is remembered count as used again, and the ghost's list
    tells which queue was too short: `share`, the part of the candidates that may be once-used ones
    before these go first, moves in that queue's favour. Uses that overlap in time are one use (the
    correlated references of LRU-K, O'Neil et al., SIGMOD 1993).

    Three choices differ from the paper's. In conversations the next turn comes after many
    strangers' prompts, so once-used ghosts are remembered for longer: three per block of the pool
    instead of at most one. `share` begins in the middle instead of at 0, which a large pool is slow
    to leave. And it is a part, not a number, since the candidates get fewer as requests run.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._max_once_ghosts = _ONCE_GHOSTS * num_blocks
        self._max_again_ghosts = _AGAIN_GHOSTS * num_blocks
        self._once: OrderedDict[int, bytes] = OrderedDict()
        self._again: OrderedDict[int, bytes] = OrderedDict()
        self._once_ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._again_ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._used_again: set[int] = set()
        self._share = 0.5  # 0...1

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def add(self, block: int, key: bytes, *, oldest: bool = False) -> None:
        """See `Order`."""
        if key in self._once_ghosts or key in self._again_ghosts:
            self._recall(key)
            self._used_again.add(block)
        queue = self._queue_of(block)
        queue[block] = key
        if oldest:
            queue.move_to_end(block, last=False)

    def remove(self, block: int) -> bytes:
        """See `Order`."""
        return self._queue_of(block).pop(block)

    def least(self) -> tuple[int, bool]:
        """See `Order`."""
        once, again = len(self._once), len(self._again)
        is_once = once and (not again or once > self._share * (once + again))
        return next(iter(self._once if is_once else self._again)), False

    def evict(self) -> int:
        """See `Order`."""
        block, _ = self.least()
        key = self.remove(block)
        if block in self._used_again:
            _remember(self._again_ghosts, key, self._max_again_ghosts)
            self._used_again.remove(block)
        else:
            _remember(self._once_ghosts, key, self._max_once_ghosts)
        return block

    def used_again(self, block: int) -> None:
        """See `Order`."""
        self._used_again.add(block)

    def lost(self, block: int) -> None:
        """See `Order`."""
        self._used_again.discard(block)

    def candidates(self) -> dict[int, bytes]:
        """See `Order`."""
        assert self._again.keys() <= self._used_again, "a block was not used again"
        assert not self._once.keys() & self._used_again, "a block was used again"
        found = {**self._once, **self._again}
        assert not self._once_ghosts.keys() & self._again_ghosts.keys(), "a ghost appears twice"
        ghosts = self._once_ghosts.keys() | self._again_ghosts.keys()
        assert ghosts.isdisjoint(found.values()), "a ghost is alive"
        assert len(self._once_ghosts) <= self._max_once_ghosts, "too many ghosts"
        assert len(self._again_ghosts) <= self._max_again_ghosts, "too many ghosts"
        assert 0 <= self._share <= 1, f"share is {self._share}"
        return found

    def _queue_of(self, block: int) -> OrderedDict[int, bytes]:
        return self._again if block in self._used_again else self._once

    def _recall(self, key: bytes) -> None:
        """Lay a ghost to rest; its list was too short, so the share moves in its favour."""
        once, again = len(self._once_ghosts), len(self._again_ghosts)
        if key in self._once_ghosts:
            del self._once_ghosts[key]
            self._share = min(1.0, self._share + max(1.0, again / once) / self._num_blocks)
        else:
            del self._again_ghosts[key]
            self._share = max(0.0, self._share - max(1.0, once / again) / self._num_blocks)


def make_order(
    eviction: Eviction, num_blocks: int, kinds: Sequence[Kind], clock: Callable[[], float]
) -> Order:
    """The policy called `eviction` for a pool of `num_blocks` blocks."""
    if eviction == "lru":
        return LeastRecentlyUsed()
    if any(kind.is_state for kind in kinds[1:]):  # beside the keys that each of them needs
        return ByWorth(kinds, clock)
    return AdaptiveReplacement(num_blocks)


def _remember(ghosts: OrderedDict[bytes, None], key: bytes, limit: int) -> None:
    ghosts[key] = None
    if len(ghosts) > limit:
        ghosts.popitem(last=False)
