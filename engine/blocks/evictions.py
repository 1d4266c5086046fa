"""Who pushed out whom: evicted pages by whose they were, for whom they went, and why.

For operators. It is counted where it happens, in constant time; what is kept is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from engine.api import Evicted, Loss

_Pair = tuple[str, str, Loss]
_OTHER: Final = "other"
"""All whose pairs are not kept."""
_MOST_PAIRS: Final = 256
_TOLD: Final = 64
"""Pairs, at most, with most pages of late."""
_TURN_SECONDS: Final = 5.0
_TURNS: Final = 12
"""Of a minute."""


class Evictions:
    """Of one pool, since the start and in the last minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now: dict[_Pair, int] = {}
        self._turn = 0
        self._turn_ends = 0.0
        self._turns: deque[tuple[int, dict[_Pair, int]]] = deque(maxlen=_TURNS - 1)
        """Those before this one in which anything was evicted, by their numbers."""
        self._before = Counter[_Pair]()
        self.num_pages = 0
        """All but deleted ones."""

    def add(self, owner: str, by: str, why: Loss, pages: int) -> None:
        """So many pages of `owner` went for a request of `by`, or were deleted."""
        seconds = self._clock()
        if seconds >= self._turn_ends:
            self._begin(int(seconds / _TURN_SECONDS))
        now, pair = self._now, (owner, by, why)
        if pair not in now and len(now) >= _MOST_PAIRS:
            pair = _OTHER, _OTHER, why
        now[pair] = now.get(pair, 0) + pages
        if why != "deleted":
            self.num_pages += pages

    def told(self, in_blocks: Callable[[int], int]) -> list[Evicted]:
        """Those pairs of whom most was evicted lately, and then most at all; the rest together."""
        turn = int(self._clock() / _TURN_SECONDS)
        lately, all_pages = Counter[_Pair](), self._before + Counter(self._now)
        for number, pages in (*self._turns, (self._turn, self._now)):
            if number > turn - _TURNS:
                lately.update(pages)
        pairs = sorted(all_pages, key=lambda one: (lately[one], all_pages[one]), reverse=True)
        if len(pairs) > _TOLD:
            for pair in pairs[_TOLD:]:
                rest = _OTHER, _OTHER, pair[2]
                if pair != rest:
                    lately[rest] += lately[pair]
                    all_pages[rest] += all_pages[pair]
            others = [(_OTHER, _OTHER, why) for _, _, why in pairs[_TOLD:]]
            pairs = list(dict.fromkeys([*pairs[:_TOLD], *others]))
        return [
            Evicted(*pair, blocks=in_blocks(all_pages[pair]), lately=in_blocks(lately[pair]))
            for pair in pairs
        ]

    def check(self) -> None:
        """Verify the books. Raises `AssertionError`."""
        assert len(self._now) <= _MOST_PAIRS + 4, "too many pairs are kept"
        assert len(self._before) <= 2 * _MOST_PAIRS, "too many pairs are kept"
        counted = [*self._before.items(), *self._now.items()]
        evicted = sum(pages for (_, _, why), pages in counted if why != "deleted")
        assert evicted == self.num_pages, "pages are miscounted"

    def _begin(self, turn: int) -> None:
        if self._now:
            self._turns.append((self._turn, self._now))
            self._before.update(self._now)
            if len(self._before) > 2 * _MOST_PAIRS - 4:
                self._fold()
        self._now, self._turn, self._turn_ends = {}, turn, (turn + 1) * _TURN_SECONDS

    def _fold(self) -> None:
        """Keep the pairs of whom most was evicted; the rest is others'."""
        kept = Counter[_Pair](dict(self._before.most_common(_MOST_PAIRS)))
        for (owner, by, why), pages in self._before.items():
            if (owner, by, why) not in kept:
                kept[_OTHER, _OTHER, why] += pages
        self._before = kept
