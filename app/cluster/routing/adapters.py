"""Which replica has which adapter, and how long the others take to have it, too."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

_FIRST_SECONDS: Final = 0.5
"""That an adapter is taken to take while nobody has loaded any."""
_MOST_KNOWN: Final = 65_536
_MEAN_OF: Final = 32
"""Loads, of which an adapter that nobody has loaded is taken to take the mean, more or less."""
_BELIEVED_SECONDS: Final = 2.0
"""From when a request was sent with an adapter: by then its replica says that it has it, or not."""


class AdapterPlaces:
    """By names that are keyed digests: a tenant finds its own adapters alone.

    A replica has an adapter when it says so, and from when it was sent a request with it.
    """

    def __init__(self) -> None:
        self._loaded: dict[int, set[bytes]] = {}
        """By replica, as each has told."""
        self._under_way: dict[str, tuple[int, bytes]] = {}
        """By request."""
        self._coming: Counter[tuple[int, bytes]] = Counter()
        """How many of these each replica has with each adapter."""
        self._sent: OrderedDict[tuple[int, bytes], float] = OrderedDict()
        """When the last one was sent, the latest last."""
        self._seconds: OrderedDict[bytes, float] = OrderedDict()
        """That loading has taken, where it was done last; what was told of last is last."""
        self._mean: float | None = None

    def loaded(
        self, replica: int, adapters: Mapping[bytes, float], gone: Sequence[bytes] | None
    ) -> None:
        """A replica has these now, which took so many seconds, and not those that are `gone` any
        more; `None`: nor any others.
        """
        there = self._loaded.setdefault(replica, set())
        if gone is None:
            there.clear()
        there.difference_update(gone or ())
        there.update(adapters)
        for name, seconds in adapters.items():
            self._seconds[name] = seconds
            self._seconds.move_to_end(name)
            mean = seconds if self._mean is None else self._mean
            self._mean = mean + (seconds - mean) / _MEAN_OF
        while len(self._seconds) > _MOST_KNOWN:
            self._seconds.popitem(last=False)

    def routed(self, request_id: str, replica: int, name: bytes, now: float) -> None:
        """The replica was sent a request with an adapter."""
        self._under_way[request_id] = replica, name
        self._coming[replica, name] += 1
        self._sent[replica, name] = now
        self._sent.move_to_end((replica, name))
        while next(iter(self._sent.values())) < now - _BELIEVED_SECONDS:
            self._sent.popitem(last=False)

    def finished(self, request_id: str) -> None:
        """The request has ended; what is unknown is left alone."""
        place = self._under_way.pop(request_id, None)
        if place is not None:
            self._coming[place] -= 1
            if not self._coming[place]:
                del self._coming[place]

    def forget(self, replica: int) -> None:
        """Nothing is known of the replica any more; its requests finish one by one."""
        self._loaded.pop(replica, None)
        for place in [place for place in self._sent if place[0] == replica]:
            del self._sent[place]

    def has(self, replica: int, name: bytes, now: float) -> bool:
        """Whether a request need not wait there for an adapter, or no longer than others do."""
        place = replica, name
        return (
            name in self._loaded.get(replica, ())
            or place in self._coming
            or self._sent.get(place, -_BELIEVED_SECONDS) > now - _BELIEVED_SECONDS
        )

    def seconds(self, name: bytes) -> float:
        """That a request waits for an adapter where it is not, as far as that is known."""
        mean = _FIRST_SECONDS if self._mean is None else self._mean
        return self._seconds.get(name, mean)
