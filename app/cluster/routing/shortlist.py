"""Which of many replicas are worth a closer look for a prompt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Final

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
