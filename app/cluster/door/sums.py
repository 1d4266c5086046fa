"""What replicas say, taken together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, TypeVar

import msgspec

from engine.api import (
    COUNTERS,
    AdapterState,
    BlockFate,
    EngineStats,
    Evicted,
    Loss,
    ReusePoint,
    TenantStats,
)

_ORDER: Final = ("present", "no_state", "evicted", "lost_long_ago", "never_seen")

_Stats = TypeVar("_Stats", EngineStats, TenantStats)


def sum_of(stats: Sequence[EngineStats]) -> EngineStats:
    """One engine as large as all of them, at least one.

    Of what is left to compute, and of what is computed in a second, it says the mean: a request
    meets one replica. Of experts it says those of one, and how unevenly they are used at worst.
    """
    total = reduce(_added, stats)
    return msgspec.structs.replace(
        total,
        queue_seconds=total.queue_seconds / len(stats),
        prefill_tokens_per_s=total.prefill_tokens_per_s / len(stats),
    )


@dataclass(slots=True)
class Counts:
    """What replicas have counted, those that are gone included: it never falls."""

    _last: dict[int, EngineStats] = field(default_factory=dict)
    """What each one has said last, whether or not it answers now."""
    _gone: Counter[str] = field(default_factory=Counter)

    def observe(self, stats: Mapping[int, EngineStats], replicas: Collection[int]) -> None:
        """These of `replicas`, which are all that there are, have said this."""
        for replica, one in stats.items():
            last = self._last.get(replica)
            if last is not None and one.engine != last.engine:
                self._end(last)
            self._last[replica] = one
        for replica in self._last.keys() - set(replicas):
            self._end(self._last.pop(replica))

    def put_into(self, total: EngineStats) -> EngineStats:
        """A sum with what all have counted."""
        values = {
            name: self._gone[name] + sum(getattr(one, name) for one in self._last.values())
            for name in COUNTERS
        }
        return msgspec.structs.replace(total, engine="", **values)

    def _end(self, last: EngineStats) -> None:
        for name in COUNTERS:
            self._gone[name] += getattr(last, name)


def best_fates(answers: Sequence[Sequence[BlockFate]]) -> list[BlockFate]:
    """Of each block, what is best: it is somewhere, or it was evicted last."""
    return [
        min(fates, key=lambda fate: (_ORDER.index(fate.state), fate.seconds_ago))
        for fates in zip(*answers, strict=True)
    ]


def adapters_of_all(
    answers: Sequence[Sequence[AdapterState | None]],
) -> list[AdapterState | None]:
    """Of each adapter, what all replicas say: it is where it is for any of them, and came there as
    where it was used last.
    """
    return [_adapter([one for one in said if one]) for said in zip(*answers, strict=True)]


def _adapter(said: Sequence[AdapterState]) -> AdapterState | None:
    if not said:
        return None
    last = min(said, key=lambda one: math.inf if one.idle_seconds is None else one.idle_seconds)
    return msgspec.structs.replace(
        last,
        on_device=any(one.on_device for one in said),
        in_host=any(one.in_host for one in said),
        num_bytes=max(one.num_bytes for one in said),
        uses=sum(one.uses for one in said),
    )


def _added(one: EngineStats, other: EngineStats) -> EngineStats:
    tenants = dict(one.tenants)
    for name, stats in other.tenants.items():
        tenants[name] = _numbers_added(tenants[name], stats) if name in tenants else stats
    total = _numbers_added(one, other)
    imbalances = [said.expert_imbalance for said in (one, other)]
    return msgspec.structs.replace(
        total,
        tenants=tenants,
        adapters=[*one.adapters, *other.adapters],
        reuse=_curve(one, other),
        evicted=_evicted(one, other),
        num_experts=max(one.num_experts, other.num_experts),
        expert_imbalance=max((known for known in imbalances if known is not None), default=None),
    )


def _numbers_added(one: _Stats, other: _Stats) -> _Stats:
    """The first one, with the numbers of both."""
    values = {field: getattr(one, field) for field in one.__struct_fields__}
    sums = {
        field: value + getattr(other, field)
        for field, value in values.items()
        if isinstance(value, (int, float))
    }
    return msgspec.structs.replace(one, **sums)


def _evicted(one: EngineStats, other: EngineStats) -> list[Evicted]:
    """Of all replicas, and again the most of late first."""
    blocks, lately = Counter[tuple[str, str, Loss]](), Counter[tuple[str, str, Loss]]()
    for evicted in (*one.evicted, *other.evicted):
        pair = evicted.owner, evicted.by, evicted.why
        blocks[pair] += evicted.blocks
        lately[pair] += evicted.lately
    pairs = sorted(blocks, key=lambda pair: (lately[pair], blocks[pair]), reverse=True)
    return [Evicted(*pair, blocks=blocks[pair], lately=lately[pair]) for pair in pairs]


def _curve(one: EngineStats, other: EngineStats) -> list[ReusePoint]:
    """Of pools that grow alike; each says as much as it was asked for."""
    if len(one.reuse) != len(other.reuse):
        return one.reuse or other.reuse
    asked = one.prompt_tokens + other.prompt_tokens
    share = one.prompt_tokens / asked if asked else 0.5
    return [
        ReusePoint(mine.blocks + its.blocks, share * mine.found + (1 - share) * its.found)
        for mine, its in zip(one.reuse, other.reuse, strict=True)
    ]
