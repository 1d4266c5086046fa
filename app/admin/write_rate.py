"""How many writes an operator may make in a minute: no one holder of a token fills the audit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from http import HTTPStatus

from app.admin.problems import Problem

_MINUTE = 60.0
_MOST_KNOWN = 10_000


class WriteRate:
    """Counts in this process; a minute's writes may come at once (GCRA, ITU-T I.371)."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._full_at: dict[str, float] = {}
        """By operator: when all of a minute's writes may be made again."""

    def count(self, operator: str) -> None:
        """Count a write. Raises `Problem` 429 where it is too many, and does not count it."""
        if self._per_minute is None:
            return
        now = self._clock()
        full_at = max(now, self._full_at.get(operator, now)) + _MINUTE / self._per_minute
        wait = full_at - _MINUTE - now
        if wait > 1e-6:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"An operator may make {self._per_minute} writes a minute.",
                code="too_many_writes",
                headers={"retry-after": str(math.ceil(wait))},
            )
        if len(self._full_at) >= _MOST_KNOWN:
            self._full_at = {who: at for who, at in self._full_at.items() if at > now}
        self._full_at[operator] = full_at
