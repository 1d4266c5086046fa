"""What a front door has sent to replicas, and not seen the end of: it counts at once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_Key = TypeVar("_Key", bytes, int)


@dataclass(frozen=True, slots=True)
class _Routed:
    replica: int
    hashes: tuple[bytes, ...]


@dataclass(slots=True)
class _Replica:
    """What one replica was sent."""

    blocks: Counter[bytes] = field(default_factory=Counter)
    """How many of its requests under way hold a block."""
    sent: deque[tuple[float, float]] = field(default_factory=deque)
    """When something was sent, and the seconds that its prompt takes."""
    num_requests: int = 0


class InFlight:
    """Requests under way, by their ids, and the blocks that each replica will hold for them.

    The blocks of a request are a chain, so that a replica which has one of them in flight has all
    before it: a look-up takes the logarithm of a prompt's length.
    """

    def __init__(self) -> None:
        self._requests: dict[str, _Routed] = {}
        self._replicas: dict[int, _Replica] = {}
        self._busy: set[int] = set()
        """Who was sent something of late."""
        self._heads: dict[bytes, Counter[int]] = {}
        """By the first block of chains under way: who was sent how many of them."""

    def add(
        self, request_id: str, replica: int, hashes: Sequence[bytes], seconds: float, now: float
    ) -> None:
        """`replica` was sent a request whose prompt keeps it busy for so many seconds.

        Raises `ValueError` for an id that is under way.
        """
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} is under way already")
        self._requests[request_id] = _Routed(replica, tuple(hashes))
        at = self._replicas.setdefault(replica, _Replica())
        at.blocks.update(hashes)
        at.sent.append((now, seconds))
        at.num_requests += 1
        self._busy.add(replica)
        if hashes:
            self._heads.setdefault(hashes[0], Counter())[replica] += 1

    def remove(self, request_id: str) -> None:
        """The request has ended, wherever it was; what is unknown is left alone."""
        routed = self._requests.pop(request_id, None)
        if routed is None:
            return
        at = self._replicas[routed.replica]
        at.num_requests -= 1
        for block in routed.hashes:
            _count_down(at.blocks, block)
        if routed.hashes:
            head = self._heads[routed.hashes[0]]
            _count_down(head, routed.replica)
            if not head:
                del self._heads[routed.hashes[0]]

    def drop(self, replica: int) -> list[str]:
        """Forget all that a replica was sent, which is gone; returns whose requests it had."""
        lost = [name for name, routed in self._requests.items() if routed.replica == replica]
        for name in lost:
            self.remove(name)
        self._replicas.pop(replica, None)
        self._busy.discard(replica)
        return lost

    def depths(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Replicas, and how many leading blocks of `hashes` each will hold: at least one."""
        for replica in self._heads.get(hashes[0], ()) if hashes else ():
            blocks = self._replicas[replica].blocks
            low, high = 1, len(hashes)
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if hashes[middle - 1] in blocks else (low, middle - 1)
            yield replica, low

    def sent_to(self) -> list[int]:
        """Replicas of which `seconds_since` has something to say."""
        return list(self._busy)

    def seconds_since(self, replica: int, then: float) -> float:
        """Of prompts that the replica was sent after `then`, which never goes back."""
        at = self._replicas.get(replica)
        if at is None:
            return 0.0
        while at.sent and at.sent[0][0] <= then:
            at.sent.popleft()
        if not at.sent:
            self._busy.discard(replica)
        return sum(seconds for _, seconds in at.sent)

    def num_requests(self, replica: int) -> int:
        """How many of this door's requests are under way there."""
        at = self._replicas.get(replica)
        return 0 if at is None else at.num_requests


def _count_down(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
