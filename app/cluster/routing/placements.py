"""What a front door had computed where: which caches are crowded, and which prefixes are shared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_HORIZON: Final = 100
"""Requests after which one that was placed counts 1/e."""
_MOST_BRANCHES: Final = 4096
_LARGEST_WEIGHT: Final = 1e9


class Placements:
    """Seconds of prompts computed at each replica, and where prompts have left what was known."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._weight = 1.0
        """Of the next request: later ones count more, instead of earlier ones less."""
        self._branches: dict[bytes, int] = {}
        """How many prompts went different ways behind a block, the latest last."""

    def add(self, replica: int, seconds: float, branch: bytes | None) -> None:
        """A replica computes so much of a prompt, of which nobody has what is behind `branch`."""
        self._weight *= 1 + 1 / _HORIZON
        self._seconds[replica] = self._seconds.get(replica, 0.0) + seconds * self._weight
        if self._weight > _LARGEST_WEIGHT:
            self._seconds = {one: sum_ / self._weight for one, sum_ in self._seconds.items()}
            self._weight = 1.0
        if branch is not None:
            self._branches[branch] = self._branches.pop(branch, 0) + 1
            if len(self._branches) > _MOST_BRANCHES:
                del self._branches[next(iter(self._branches))]

    def drop(self, replica: int) -> None:
        """The replica is no more, nor what it has computed."""
        self._seconds.pop(replica, None)

    def sharers(self, branch: bytes | None) -> int:
        """How many prompts have gone on in ways of their own behind this block, with the next."""
        return 1 + (self._branches.get(branch, 0) if branch is not None else 0)

    def crowding(self, replicas: Iterable[int]) -> dict[int, float]:
        """By how many seconds a request each of `replicas` has computed more than its share.

        That is: the mean of all requests, had everybody computed as much, less what it is.
        """
        there = list(replicas)
        seconds = [self._seconds.get(replica, 0.0) for replica in there]
        mean = sum(seconds) / len(seconds)
        unit = len(seconds) / (_HORIZON * self._weight)
        return dict(zip(there, [(own - mean) * unit for own in seconds], strict=True))
