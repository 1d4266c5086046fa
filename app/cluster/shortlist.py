"""Which of many replicas are worth a closer look for a prompt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from heapq import nsmallest
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
    for replica in costs:
        by_depth.setdefault(depths.get(replica, 0), []).append(replica)
    found: list[int] = []
    for alike in by_depth.values():
        first = start % len(alike)
        turned = alike[first:] + alike[:first]
        found += nsmallest(_BEST, turned, key=lambda replica: costs[replica] // equal)
    return found
