"""Who chooses a replica for a request: the rule of Partywall, and those that others use."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

    def __init__(self, choose: Callable[[Question], int]) -> None:
        self.choose = choose
        """The replica to which a request is sent now."""

    def finished(self, _request: Request, /) -> None:
        """A request that this door has sent is over."""


Doors = Callable[[int, PrefixIndex, int], list[Policy]]
"""Makes policies for so many front doors, with their index and the block size."""


def _alike(make: Callable[[int], Callable[[Question], int]]) -> Doors:
    """Doors that know nothing but what they see: each is made of its number."""
    return lambda doors, _index, _size: [Policy(make(door)) for door in range(doors)]


def _random(seed: int) -> Callable[[Question], int]:
    """Any replica."""
    draw = random.Random(seed)
    return lambda question: draw.choice(list(question.seen))


def _round_robin(first: int) -> Callable[[Question], int]:
    """One after the other, at each door for itself."""
    numbers = itertools.count(first + 1)
    return lambda question: next(numbers) % len(question.seen)


def _session(question: Question) -> int:
    """A conversation stays where its hash puts it, whatever else happens there."""
    return ranked(b"session" + question.request.session.to_bytes(8), question.seen)[0]


def _of_two(draw: random.Random, replicas: Sequence[int], seen: Mapping[int, Seen]) -> int:
    """Of two at random the one with fewer requests: Ray Serve's own rule."""
    two = draw.sample(replicas, min(2, len(replicas)))
    return min(two, key=lambda replica: seen[replica].num_requests)


def _power_of_two(seed: int) -> Callable[[Question], int]:
    draw = random.Random(seed)
    return lambda question: _of_two(draw, list(question.seen), question.seen)


pooled_doors: Final = _alike(_power_of_two)
"""What is cached is cached for all replicas: only their queues tell them apart."""


def _ray_prefix_doors(doors: int, _index: PrefixIndex, _block_size: int) -> list[Policy]:
    """The rule of `ray.serve.llm`'s prefix-aware router, written anew after its documentation.

    One tree for all doors says which prompts were sent where, by blocks instead of characters;
    nothing leaves it. Of the replicas with the longest match power of two, or where less than a
    tenth matches, the replica to which least was sent.
    """
    sent: dict[bytes, set[int]] = {}
    sizes: Counter[int] = Counter()

    def choose(draw: random.Random, question: Question) -> int:
        hashes, seen = question.request.prompt_hashes, question.seen
        matched = list(itertools.takewhile(sent.__contains__, hashes))
        if matched and len(matched) >= _RAY_MATCH_RATE * len(hashes):
            chosen = _of_two(draw, sorted(sent[matched[-1]]), seen)
        else:
            least = min(sizes[one] for one in seen)
            chosen = _of_two(draw, [one for one in seen if sizes[one] == least], seen)
        for block in hashes:
            homes = sent.setdefault(block, set())
            if chosen not in homes:
                homes.add(chosen)
                sizes[chosen] += 1
        return chosen

    return [Policy(partial(choose, random.Random(door))) for door in range(doors)]


class Ours(Policy):
    """`app.cluster.routing`, as it is."""

    def __init__(self, index: PrefixIndex, block_size: int, seed: int) -> None:
        super().__init__(self._choose)
        self._router = Router(index, block_size, seed)

    def _choose(self, question: Question) -> int:
        request, now = question.request, question.now
        loads = {replica: one.load for replica, one in question.seen.items()}
        hashes = request.prompt_hashes
        choice = self._router.choose(hashes, request.prompt_tokens, loads, now)
        self._router.routed(request.name, choice, hashes, now)
        return choice.replica

    def finished(self, request: Request, /) -> None:
        """See `Policy`."""
        self._router.finished(request.name)


POLICIES: Final[Mapping[str, Doors]] = {
    "random": _alike(_random),
    "round_robin": _alike(_round_robin),
    "power_of_two": pooled_doors,
    "consistent_hash": _alike(lambda _: _session),
    "ray_prefix_rule": _ray_prefix_doors,
    "ours": lambda doors, index, size: [Ours(index, size, door) for door in range(doors)],
}
