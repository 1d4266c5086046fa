"""The places in texts where somebody may come back: which of those that are kept is worth least.

A place that lost its memory is remembered for a while, and not only so that it is seen who would
have come back (what is given up early would else seem never to be wanted): whoever comes for it
falls back to the place that is kept before it, which is worth the more.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from engine.blocks.eviction.likelihood import Likelihood, Sort

_REMEMBERED: Final = 4
"""Places without memory, for each one that is kept."""
_FEWEST: Final = 256
_MOST_WARDS: Final = 16
_LEARNT: Final = 16
"""Tables are made anew once there is a return for so many places."""
_MOST_LOOKED_AT: Final = 1_000
"""Of more places every second, third, ... stands for the others: steps wait for it."""
_MOST_RETURNS: Final = 3
"""From here on it is the same how often a place was come back to."""
_SAMPLE: Final = 24
"""So many places are looked at to find the one that is worth least; 128 found hardly a better one
(`bench/LOG.md`).
"""

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Place:
    kind: Hashable
    tenant: Hashable
    since: float
    returns: int
    passed: bool = False
    sort: Sort = ()
    heir: _Place | None = None
    """The kept place nearest before it, for one that is not."""
    wards: list[_Place] = field(default_factory=list)
    """Those whose heir this is, the last ones that were given up."""

    def __post_init__(self) -> None:
        self.wait(self.since)

    def wait(self, now: float) -> None:
        """For the next return, from now on."""
        self.since = now
        self.sort = (self.kind, self.passed), min(self.returns, _MOST_RETURNS), self.tenant


class Places(Generic[Key]):
    """What is known of each place, by what its text is called (a block's hash).

    Of those that are kept some are up to be given up, which `offer` and `withdraw` tell.
    """

    def __init__(self) -> None:
        self._likelihood = Likelihood()
        self._places: dict[Key, _Place] = {}
        """That are kept."""
        self._offered: list[Key] = []
        """In any order, to draw from."""
        self._index: dict[Key, int] = {}
        """Where in that list."""
        self._replaced: OrderedDict[Key, None] = OrderedDict()
        self._gone: OrderedDict[Key, _Place] = OrderedDict()
        self._returns = 0
        self._draw = random.Random(0)

    def __len__(self) -> int:
        """How many are up to be given up."""
        return len(self._offered)

    def __contains__(self, key: Key) -> bool:
        """Whether it is kept."""
        return key in self._places

    def remembers(self, key: Key) -> bool:
        """Whether it was kept once and is not now."""
        return key in self._gone

    def kind(self, key: Key) -> Hashable:
        """What a place that is kept was made for."""
        return self._places[key].kind

    def returns(self, key: Key) -> int:
        """How often somebody came back to a kept one, or to those that it replaced."""
        return self._places[key].returns

    def add(self, key: Key, kind: Hashable, tenant: Hashable, now: float, returns: int = 0) -> None:
        """Keep a place from now on. One that replaces another takes over its `returns`."""
        place = self._gone.pop(key, None)
        if place is None:
            place = _Place(kind, tenant, now, returns)
        _disinherit(place)
        self._places[key] = place

    def offer(self, key: Key) -> None:
        """A kept one may be given up from now on."""
        self._index[key] = len(self._offered)
        self._offered.append(key)

    def withdraw(self, key: Key) -> None:
        """It may not any more."""
        last = self._offered.pop()
        index = self._index.pop(key)
        if last != key:
            self._offered[index] = last
            self._index[last] = index

    def returned(self, key: Key, now: float) -> None:
        """Somebody came back to a place that is kept or remembered."""
        place = self._places.get(key) or self._gone[key]
        self._likelihood.over(place.sort, now - place.since, returned=True)
        _disinherit(place)
        place.returns += 1
        place.wait(now)
        self._replaced.pop(key, None)
        self._returns += 1

    def passed(self, key: Key, now: float) -> bool:
        """A kept one's text went on to a place further on: from now on it waits for those who go
        back. Returns whether it had not before.
        """
        place = self._places[key]
        if place.passed:
            return False
        self._likelihood.over(place.sort, now - place.since, returned=False)
        place.passed = True
        place.wait(now)
        return True

    def replaced(self, key: Key) -> None:
        """Another place has taken over what this one was for: it is the first to go."""
        self._replaced[key] = None

    def least(self, now: float, gain: Callable[[Key], float]) -> Key:
        """Of those that may be given up, the one worth least: hits per second times `gain`.

        That is what a hit there saves over the next place before it, for the memory that goes with
        it.
        """
        for key in self._replaced:
            if key in self._index:
                return key
        few = len(self._offered) <= _SAMPLE
        sample = self._offered if few else self._draw.sample(self._offered, _SAMPLE)
        return min(sample, key=lambda key: gain(key) * self._rate(key, now))

    def forget(self, key: Key, heir: Key | None) -> None:
        """The memory of one that is not offered (any more) is given up: who comes back to it falls
        back to `heir`, kept before it.
        """
        place = self._gone[key] = self._places.pop(key)
        self._replaced.pop(key, None)
        if heir is not None:
            after = self._places[heir]
            after.wards = [*after.wards, *place.wards, place][-_MOST_WARDS:]
            for ward in after.wards:
                ward.heir = after
        place.wards = []

    def learn(self, now: float) -> None:
        """After each request: look at who has come back, if enough have to tell something new."""
        while len(self._gone) > max(_FEWEST, _REMEMBERED * len(self._places)):
            _, place = self._gone.popitem(last=False)
            _disinherit(place)
            self._likelihood.over(place.sort, now - place.since, returned=False)
        if self._returns * _LEARNT < len(self._places) + len(self._gone):
            return
        self._returns = 0
        waiting = [*self._places.values(), *self._gone.values()]
        each = 1 + len(waiting) // _MOST_LOOKED_AT
        some = ((place.sort, now - place.since) for place in waiting[::each])
        self._likelihood.learn(some, each)

    def offered(self) -> set[Key]:
        """All that may be given up. Verifies the books on the way. Raises `AssertionError`."""
        found = set(self._offered)
        assert self._index == {key: at for at, key in enumerate(self._offered)}, "misplaced"
        assert found <= self._places.keys(), "what is offered is not kept"
        assert self._replaced.keys() <= self._places.keys(), "what was replaced is not kept"
        assert not self._gone.keys() & self._places.keys(), "a place is kept and gone"
        return found

    def _rate(self, key: Key, now: float) -> float:
        """Hits per second of keeping it, as far as can be told."""
        place = self._places[key]
        rate = self._likelihood.rate(place.sort, now - place.since)
        for one in place.wards:
            rate += self._likelihood.rate(one.sort, now - one.since)
        return rate


def _disinherit(place: _Place) -> None:
    """Nobody falls back from it any more."""
    if place.heir is not None:
        place.heir.wards = [one for one in place.heir.wards if one is not place]
        place.heir = None
