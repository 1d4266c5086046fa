"""What sharing is worth: tokens of prompts that were found, and what computing them would cost.

Counted as each answer ends, before its end is told, of all and by tenant and registered prompt:
today (UTC), and in the last seconds. Who does most has a tally of its own, so what is kept is
bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

from app.observe.traffic import OTHER, Busiest
from tenants.usage.prices import Prices

NOW_SECONDS: Final = 20
MOST_NAMES: Final = 256
_DAY_SECONDS: Final = 24 * 3600
_RANK_SECONDS: Final = 60.0


@dataclass(slots=True)
class Saved:
    """By some requests: of their `prompt_tokens` some were found, which spared computing them.

    `seconds` are what that would have taken the engine, by what its steps have taught;
    `worth_nanos` is their price as prompt tokens that are computed, `discount_nanos` the part of it
    that tenants did not pay, as found ones have a price of their own.
    """

    requests: int = 0
    prompt_tokens: int = 0
    found_tokens: int = 0
    seconds: float = 0.0
    worth_nanos: int = 0
    discount_nanos: int = 0

    @classmethod
    def by_one(cls, prompt: int, found: int, seconds: float, prices: Prices) -> Saved:
        """By one request of which so many tokens were found."""
        discount = max(0, prices.input - prices.cached)
        return cls(1, prompt, found, seconds, found * prices.input, found * discount)

    @property
    def hit_rate(self) -> float | None:
        """Which part was found; `None` of nothing."""
        return self.found_tokens / self.prompt_tokens if self.prompt_tokens else None

    def add(self, other: Saved, times: int = 1) -> None:
        """Count what others have saved, or, with -1, no more."""
        for one in _FIELDS:
            setattr(self, one, getattr(self, one) + times * getattr(other, one))


_FIELDS: Final = tuple(one.name for one in fields(Saved))


@dataclass(slots=True)
class Tally:
    """What was saved today, and in each of the last seconds."""

    today: Saved = field(default_factory=Saved)
    _seconds: deque[tuple[int, Saved]] = field(default_factory=lambda: deque(maxlen=NOW_SECONDS))

    def add(self, saved: Saved, second: int) -> None:
        """So much more was, in this second."""
        self.today.add(saved)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Saved()))
        self._seconds[-1][1].add(saved)

    def lately(self, second: int) -> Saved:
        """Since `NOW_SECONDS` before the end of this second."""
        total = Saved()
        for when, saved in self._seconds:
            if when > second - NOW_SECONDS:
                total.add(saved)
        return total


class Row(NamedTuple):
    """What is told of a name; of all others together without one."""

    name: str | None
    now: Saved
    today: Saved


class Board:
    """Tallies of all, and of the names that do most."""

    def __init__(self) -> None:
        self.total = Tally()
        self._busiest = Busiest(MOST_NAMES, Tally)

    def count(self, name: str, saved: Saved, second: int) -> None:
        """A request under this name has saved so much."""
        self.total.add(saved, second)
        self._busiest.did(name, saved.prompt_tokens).add(saved, second)

    def rank(self) -> None:
        """See `Busiest.rank`; who loses its tally is among the others."""
        self._busiest.rank()

    def rows(self, most: int, second: int) -> list[Row]:
        """Those that saved most today first; the last row is all others', if there are any."""
        named = [
            Row(name, tally.lately(second), tally.today)
            for name, tally in self._busiest
            if name != OTHER
        ]
        named.sort(key=lambda row: (row.today.found_tokens, row.today.prompt_tokens), reverse=True)
        rest = Row(None, self.total.lately(second), Saved())
        rest.today.add(self.total.today)
        for row in named[:most]:
            rest.now.add(row.now, -1)
            rest.today.add(row.today, -1)
        return [*named[:most], *([rest] if rest.today.requests else [])]


class Told(NamedTuple):
    """Since when today is counted, the row of all, and rows by tenant and by registered prompt."""

    since: float
    total: Row
    tenants: list[Row]
    prompts: list[Row]


class Sharing:
    """Of one service's requests, by tenant and by registered prompt."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._since = self._ranked_at = clock()
        self._tenants, self._prompts = Board(), Board()

    def count(
        self,
        tenant: str,
        saved: Saved,
        prompt: str | None = None,
        own: Saved | None = None,
    ) -> None:
        """A tenant's request has saved so much; `own` by the registered prompt that it is under."""
        second = self._second()
        self._tenants.count(tenant, saved, second)
        if prompt is not None and own is not None:
            self._prompts.count(prompt, own, second)

    def told(self, most: int) -> Told:
        """What is known, of up to so many tenants and prompts each alone."""
        second = self._second()
        total = self._tenants.total
        return Told(
            self._since,
            Row(None, total.lately(second), total.today),
            self._tenants.rows(most, second),
            self._prompts.rows(most, second),
        )

    def _second(self) -> int:
        """The one of now. What was of yesterday is forgotten, and places go to who does more."""
        now = self._clock()
        midnight = now - now % _DAY_SECONDS
        if self._since < midnight:
            self._since = midnight
            self._tenants, self._prompts = Board(), Board()
        if now - self._ranked_at >= _RANK_SECONDS:
            self._ranked_at = now
            self._tenants.rank()
            self._prompts.rank()
        return int(now)
