"""Which replica takes a request: the one where it, and those behind it, wait least for tokens.

A request costs what is left of its prompt to compute, and waits for the prompts before it; both are
seconds, by the replica's own cost model. Its cached prefix makes one replica cheaper than others
until that one's queue costs more: then the prefix is computed a second time, and from then on has
two homes. That is how a prompt spreads which is too hot for one replica.

Three more costs keep the caches worth together what one large cache would be:

- What is computed is waited for by all requests behind it, so its seconds weigh more than those of
  waiting. Hence a conversation hardly ever moves.
- Less of it where many prompts share what is computed once more: that is an investment. How many
  do is counted where prompts part.
- Whatever is computed evicts something. A replica that has computed more than its share, of late,
  evicts what is younger, and costs more.

And an adapter (`app.cluster.routing.adapters`) is waited for where it is not loaded, and evicts
something there, too.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, Literal

from app.cluster.routing.adapters import AdapterPlaces
from app.cluster.routing.in_flight import InFlight
from app.cluster.routing.index import PrefixIndex

Why = Literal["cached", "spread", "two_choices", "sticky"]

WORK_WEIGHT: Final = 7.0
"""What a second of computing costs those behind it, where a second of waiting counts 1."""
CROWDING_WEIGHT: Final = 2.0
"""What it costs to have computed twice one's share, in what a request takes to compute."""
LOAD_WEIGHT: Final = 3.0
"""What a second of loading an adapter costs: who waits for it, and those behind, for whose blocks
there is less memory."""
STALE_SECONDS: Final = 2.0
"""A replica that has said nothing for so long is not believed any more."""
FULL_SHARE: Final = 0.02
"""Of free blocks: with less, a request would wait for the end of others."""
EQUAL_SECONDS: Final = 0.005
"""Replicas whose scores differ by no more are equally good."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica that takes requests has last said of itself."""

    queue_seconds: float
    """Left to compute of the prompts that it has accepted."""
    kv_free_share: float
    """Part of its blocks that no request holds, cached ones among them: 0 ... 1."""
    prefill_tokens_per_s: float
    """Of a prompt, beside what it decodes."""
    said_at: float
    """When it said so, in seconds of the door's clock."""

    def __post_init__(self) -> None:
        if not self.prefill_tokens_per_s > 0:
            raise ValueError("prefill_tokens_per_s: must be more than 0")


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica for a request, and what is expected of it there."""

    replica: int
    cached_tokens: int
    """Of the prompt, that will not have to be computed."""
    prefill_seconds: float
    """For the others."""
    why: Why
    """`cached`: no other has more of it. `spread`: none has any, or to wait where there is more of
    it costs more. `two_choices`: no replica has said anything for a while. `sticky`: nobody is
    known to have any of it, but its conversation was there."""
    known_blocks: int = 0
    """Leading blocks that some replica has or will have."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What is to be computed."""

    hashes: Sequence[bytes]
    num_tokens: int
    home: int | None
    adapter: bytes


class Router:
    """Chooses replicas for the requests of one front door.

    A replica is offered to it (in `loads`) from when it is warm until it is to take no more.
    """

    def __init__(self, index: PrefixIndex, block_size: int, seed: int = 0) -> None:
        """`seed` draws the two replicas that are compared where nothing is known of any."""
        self._index = index
        self._block_size = block_size
        self._draw = random.Random(seed)
        self._in_flight = InFlight()
        self._placements = Placements()
        self.adapters = AdapterPlaces()

    def choose(
        self,
        hashes: Sequence[bytes],
        prompt_tokens: int,
        loads: Mapping[int, ReplicaLoad],
        now: float,
        home: int | None = None,
        adapter: bytes = b"",
    ) -> Choice:
        """A replica of `loads` for a prompt whose full blocks have these hashes.

        `home` is where the response was made that it continues, if that is known, and `adapter` the
        name of what it waits for, if anything. Raises `ValueError` where there are no replicas.
        """
        if not loads:
            raise ValueError("loads: there is no replica")
        prompt = _Prompt(hashes, prompt_tokens, home, adapter)
        since = now - STALE_SECONDS
        fit = {
            replica: load
            for replica, load in loads.items()
            if load.said_at >= since and load.kv_free_share >= FULL_SHARE
        }
        if not fit:
            fit = {one: load for one, load in loads.items() if load.said_at >= since}
        return self._by_score(prompt, fit, now) if fit else self._blindly(prompt, loads)

    def routed(
        self,
        request_id: str,
        choice: Choice,
        hashes: Sequence[bytes],
        now: float,
        adapter: bytes = b"",
    ) -> None:
        """The request is on its way: its blocks will be there, and it is waited for.

        Raises `ValueError` for an id that is under way.
        """
        self._in_flight.add(request_id, choice.replica, hashes, choice.prefill_seconds, now)
        branch = _branch(hashes, choice.known_blocks)
        self._placements.add(choice.replica, choice.prefill_seconds, branch)
        if adapter:
            self.adapters.routed(request_id, choice.replica, adapter, now)

    def finished(self, request_id: str) -> None:
        """The request is over, for whatever reason."""
        self._in_flight.remove(request_id)
        self.adapters.finished(request_id)

    def gone(self, replica: int) -> list[str]:
        """The replica is no more; returns the requests that were under way there."""
        self._placements.drop(replica)
        lost = self._in_flight.drop(replica)
        for request_id in lost:
            self.adapters.finished(request_id)
        return lost

    def _by_score(self, prompt: _Prompt, loads: Mapping[int, ReplicaLoad], now: float) -> Choice:
        depths = self._depths(prompt.hashes)
        known = max((depth for one, depth in depths.items() if one in loads), default=0)
        branch = _branch(prompt.hashes, known)
        costs = self._costs(loads, now)
        new = _first_new(prompt.hashes, known)
        if prompt.adapter:
            new = self._count_loading(costs, prompt.adapter, now) or new
        choices: dict[int, Choice] = {}
        scores: dict[int, float] = {}
        near = shortlist(new, depths, costs, EQUAL_SECONDS)
        homes = [prompt.home] if prompt.home is not None and prompt.home in loads else []
        for replica in dict.fromkeys([*near, *homes]):
            load, depth = loads[replica], depths.get(replica, 0)
            choice = self._choice(prompt, replica, load, depth, known)
            again = (known - depth) * self._block_size / load.prefill_tokens_per_s
            # A home of which nothing is known may well have all of it.
            own = 0.0 if choice.why == "sticky" else choice.prefill_seconds
            # Who computes a shared prefix once more does it for all who share it.
            lasting = own - again + again / self._placements.sharers(branch)
            scores[replica] = costs[replica] + own + WORK_WEIGHT * lasting
            choices[replica] = choice
        least = min(scores.values()) + EQUAL_SECONDS
        equal = [choices[replica] for replica, score in scores.items() if score <= least]
        most = max(choice.cached_tokens for choice in equal)
        best = [choice.replica for choice in equal if choice.cached_tokens == most]
        # What no replica has may be asked for at several doors at once: let them agree.
        return choices[ranked(new, best)[0]]

    def _choice(
        self, prompt: _Prompt, replica: int, load: ReplicaLoad, depth: int, known: int
    ) -> Choice:
        # The last token is always computed: what follows it is drawn from its row.
        cached = min(depth * self._block_size, prompt.num_tokens - 1)
        seconds = (prompt.num_tokens - cached) / load.prefill_tokens_per_s
        why: Why = "cached" if depth and depth == known else "spread"
        if replica == prompt.home and not known:
            why = "sticky"
        return Choice(replica, cached, seconds, why, known)

    def _depths(self, hashes: Sequence[bytes]) -> dict[int, int]:
        """How many leading blocks each replica has or will have."""
        depths = dict(self._index.depths(hashes))
        for replica, depth in self._in_flight.depths(hashes):
            depths[replica] = max(depth, depths.get(replica, 0))
        return depths

    def _costs(self, loads: Mapping[int, ReplicaLoad], now: float) -> dict[int, float]:
        """Of a request at each replica beside what it has to compute there.

        Its queue: what it has said, and was sent by this door since, but for what it has computed
        since. And how much more than its share it has computed.
        """
        crowding = self._placements.crowding(loads)
        queues = {one: load.queue_seconds - (now - load.said_at) for one, load in loads.items()}
        for replica in self._in_flight.sent_to():
            if replica in queues:
                then = loads[replica].said_at
                queues[replica] += self._in_flight.seconds_since(replica, then)
        return {
            replica: (queue if queue > 0 else 0.0) + CROWDING_WEIGHT * crowding[replica]
            for replica, queue in queues.items()
        }

    def _count_loading(self, costs: dict[int, float], adapter: bytes, now: float) -> bytes | None:
        """Add to `costs` what an adapter costs where it is not; returns it if it is nowhere, so
        that all doors prefer the same replica for it, which may have it in the host's memory.
        """
        without = [one for one in costs if not self.adapters.has(one, adapter, now)]
        seconds = self.adapters.seconds(adapter)
        for replica in without:
            costs[replica] += LOAD_WEIGHT * seconds
        return adapter if len(without) == len(costs) else None

    def _blindly(self, prompt: _Prompt, loads: Mapping[int, ReplicaLoad]) -> Choice:
        """The better of two replicas by what this door has sent them (Mitzenmacher, 2001)."""
        if prompt.home is not None and prompt.home in loads:
            return self._choice(prompt, prompt.home, loads[prompt.home], 0, 0)
        two = self._draw.sample(sorted(loads), min(2, len(loads)))
        chosen = min(two, key=self._in_flight.num_requests)
        choice = self._choice(prompt, chosen, loads[chosen], 0, 0)
        return replace(choice, why="two_choices")


def _branch(hashes: Sequence[bytes], known_blocks: int) -> bytes | None:
    """The last block that some replica has."""
    return hashes[known_blocks - 1] if known_blocks else None


def _first_new(hashes: Sequence[bytes], known_blocks: int) -> bytes:
    """The block behind those that are known, or the last one."""
    return hashes[min(known_blocks, len(hashes) - 1)] if hashes else b""


def ranked(key: bytes, replicas: Iterable[int]) -> list[int]:
    """`replicas` in an order of preference that every front door finds for `key`.

    Who comes or goes changes nobody else's place (rendezvous hashing: Thaler and Ravishankar,
    IEEE/ACM Transactions on Networking 1998).
    """

    def weight(replica: int) -> bytes:
        return blake2b(key, digest_size=8, salt=replica.to_bytes(16)).digest()

    return sorted(replicas, key=weight)


MOST_LOOKED_AT: Final = 64
"""Of so few replicas all are looked at."""
_BEST: Final = 8
"""Of those that have equally much of the prompt."""


def shortlist(
    key: bytes, depths: Mapping[int, int], costs: Mapping[int, float], equal: float
) -> Collection[int]:
    """Of the replicas in `costs` those that can be the best for a prompt.

    Who has as much of it as others, and costs more, cannot, if they are equally fast. Costs that
    differ by less than `equal` are the same; then `key` decides, equally at all front doors.
    """
    if len(costs) <= MOST_LOOKED_AT:
        return costs.keys()
    start = int.from_bytes(blake2b(key, digest_size=8).digest())
    by_depth: dict[int, list[int]] = {}
    for replica, depth in depths.items():
        if replica in costs:
            by_depth.setdefault(depth, []).append(replica)
    without = [replica for replica in costs if replica not in depths]
    found: list[int] = []
    for alike in (without, *by_depth.values()):
        found += _best(alike, costs, equal, start)
    return found


def _best(
    replicas: Sequence[int], costs: Mapping[int, float], equal: float, start: int
) -> Sequence[int]:
    """Those that cost least; of those that cost equally little the ones from `start` on."""
    if len(replicas) <= _BEST:
        return replicas
    ascending = sorted([costs[replica] for replica in replicas])
    most = ascending[0] + equal
    least = [replica for replica in replicas if costs[replica] <= most]
    if len(least) >= _BEST:
        first = start % len(least)
        return (least[first:] + least[:first])[:_BEST]
    most = ascending[_BEST - 1]
    few = [replica for replica in replicas if costs[replica] <= most]
    return sorted(few, key=costs.__getitem__)[:_BEST]


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
