"""Who chooses a replica for a request: the rule of Partywall, and those that others use."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.cluster.routing.index import PrefixIndex
from app.cluster.routing.router import ReplicaLoad, Router, ranked
from bench.cluster.workloads import Request

_RAY_MATCH_RATE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """What a front door knows of a replica."""

    load: ReplicaLoad
    num_requests: int
    """As the replica has last said, and those that this door has sent since."""


@dataclass(frozen=True, slots=True)
class Question:
    """Where a request is to go."""

    request: Request
    seen: Mapping[int, Seen]
    """By replica."""
    now: float


class Policy:
    """One front door's way to choose."""

    def choose(self, question: Question) -> int:
        """The replica to which the request is sent now."""
        raise NotImplementedError

    def finished(self, _request: Request, /) -> None:
        """A request that this door has sent is over."""


class Random(Policy):
    """Any replica."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def choose(self, question: Question) -> int:
        """See `Policy`."""
        return self._draw.choice(list(question.seen))


class RoundRobin(Policy):
    """One after the other, at each door for itself."""

    def __init__(self, first: int) -> None:
        self._next = first

    def choose(self, question: Question) -> int:
        """See `Policy`."""
        self._next += 1
        return self._next % len(question.seen)


class PowerOfTwo(Policy):
    """Of two at random the one with fewer requests: Ray Serve's own rule."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def choose(self, question: Question) -> int:
        """See `Policy`."""
        return self.among(list(question.seen), question.seen)

    def among(self, replicas: Sequence[int], seen: Mapping[int, Seen]) -> int:
        """The same of some replicas alone."""
        two = self._draw.sample(replicas, min(2, len(replicas)))
        return min(two, key=lambda replica: seen[replica].num_requests)


class ConsistentHash(Policy):
    """A conversation stays where its hash puts it, whatever else happens there."""

    def choose(self, question: Question) -> int:
        """See `Policy`."""
        session = question.request.session.to_bytes(8)
        return ranked(b"session" + session, question.seen)[0]


class RayPrefix(PowerOfTwo):
    """The rule of `ray.serve.llm`'s prefix-aware router, written anew after its documentation.

    One tree for all doors says which prompts were sent where, by blocks instead of characters;
    nothing leaves it. Of the replicas with the longest match power of two, or where less than a
    tenth matches, the replica to which least was sent.
    """

    def __init__(self, seed: int, sent: dict[bytes, set[int]], sizes: dict[int, int]) -> None:
        super().__init__(seed)
        self._sent = sent
        self._sizes = sizes

    def choose(self, question: Question) -> int:
        """See `Policy`."""
        hashes, seen = question.request.prompt_hashes, question.seen
        matched: set[int] = set()
        num_matched = 0
        for block in hashes:
            if block not in self._sent:
                break
            matched = self._sent[block]
            num_matched += 1
        if num_matched and num_matched >= _RAY_MATCH_RATE * len(hashes):
            chosen = self.among(sorted(matched), seen)
        else:
            least = min(self._sizes.get(one, 0) for one in seen)
            chosen = self.among([one for one in seen if self._sizes.get(one, 0) == least], seen)
        for block in hashes:
            homes = self._sent.setdefault(block, set())
            if chosen not in homes:
                homes.add(chosen)
                self._sizes[chosen] = self._sizes.get(chosen, 0) + 1
        return chosen


class Ours(Policy):
    """`app.cluster.routing`, as it is."""

    def __init__(self, index: PrefixIndex, block_size: int, seed: int) -> None:
        self._router = Router(index, block_size, seed)

    def choose(self, question: Question) -> int:
        """See `Policy`."""
        request, now = question.request, question.now
        loads = {replica: one.load for replica, one in question.seen.items()}
        hashes = request.prompt_hashes
        choice = self._router.choose(hashes, request.prompt_tokens, loads, now)
        self._router.routed(request.name, choice, hashes, now)
        return choice.replica

    def finished(self, request: Request, /) -> None:
        """See `Policy`."""
        self._router.finished(request.name)


Doors = Callable[[int, PrefixIndex, int], list[Policy]]
"""Makes policies for so many front doors, with their index and the block size."""


def _ray_doors(doors: int, _index: PrefixIndex, _block_size: int) -> list[Policy]:
    sent: dict[bytes, set[int]] = {}
    sizes: dict[int, int] = {}
    return [RayPrefix(door, sent, sizes) for door in range(doors)]


def pooled_doors(doors: int, _index: PrefixIndex, _block_size: int) -> list[Policy]:
    """What is cached is cached for all replicas: only their queues tell them apart."""
    return [PowerOfTwo(door) for door in range(doors)]


POLICIES: Final[Mapping[str, Doors]] = {
    "random": lambda doors, _index, _size: [Random(door) for door in range(doors)],
    "round_robin": lambda doors, _index, _size: [RoundRobin(door) for door in range(doors)],
    "power_of_two": pooled_doors,
    "consistent_hash": lambda doors, _index, _size: [ConsistentHash() for _ in range(doors)],
    "ray_prefix_rule": _ray_doors,
    "ours": lambda doors, index, size: [Ours(index, size, door) for door in range(doors)],
}
