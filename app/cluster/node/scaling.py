"""How many replicas there are to be, by what waits at them and how full they are.

Serve's controller asks, with what replicas have last said of themselves; it heeds the bounds, and
for how long a wish must last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

QUEUE_SECONDS: Final = "queue_seconds"
"""What a replica says: to compute what is left of the prompts that it has accepted."""
KV_SHARE: Final = "kv_share"
"""The part of its blocks that requests hold."""
FULL_SHARE: Final = 0.85
"""Of the blocks of all replicas: with more in use there is to be another one."""


class ByNeed:
    """As many as keep the queues short and have room for what is under way."""

    def __init__(self, queue_seconds: float) -> None:
        """`queue_seconds` may wait at a replica, on average."""
        self._queue_seconds = queue_seconds

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Their number; there is no state."""
        said = context.aggregated_metrics or {}
        queues, shares = (said.get(name, {}).values() for name in (QUEUE_SECONDS, KV_SHARE))
        if not queues:
            return context.target_num_replicas, {}
        return replicas_needed(queues, shares, self._queue_seconds), {}


def replicas_needed(queues: Iterable[float], shares: Iterable[float], queue_seconds: float) -> int:
    """How many replicas would have `queue_seconds` each and be full at most to `FULL_SHARE`.

    It grows with what there is to do, and not with how many do it: that it takes a while until
    another one computes makes nobody start a third.
    """
    return max(1, math.ceil(sum(queues) / queue_seconds), math.ceil(sum(shares) / FULL_SHARE))
