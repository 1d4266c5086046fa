"""Goodput: the greatest arrival rate at which a server still keeps what its clients may expect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from bench.common.load import Sent

_SHARE: Final = 99
"""Percent of the requests, and of the gaps, that must be within the bounds."""
_FACTOR: Final = 2.0
_MOST_STEPS: Final = 5


@dataclass(frozen=True)
class Bounds:
    """On the 99th percentiles of the time to the first text and between two texts."""

    ttft_seconds: float = 1.0
    itl_seconds: float = 0.1

    def kept(self, sent: Sequence[Sent]) -> bool:
        """Whether requests whose time is over were within the bounds; one unanswered was not."""
        late = sum(not one.answered or self._is_late(one) for one in sent)
        gaps = [gap for one in sent for gap in one.timing.gaps_seconds]
        return late <= _allowed(len(sent)) and self._long(gaps) <= _allowed(len(gaps))

    def hopeless(self, sent: Sequence[Sent]) -> bool:
        """Whether they cannot be any more, whatever the answers that are still to come."""
        late = sum(self._is_late(one) for one in sent)
        gaps = [gap for one in sent for gap in one.timing.gaps_seconds]
        most_gaps = sum(one.arrival.ask.output_tokens - 1 for one in sent)
        return late > _allowed(len(sent)) or self._long(gaps) > _allowed(most_gaps)

    def _is_late(self, one: Sent) -> bool:
        """Whether its first text came too late, is overdue, or will never come."""
        timing = one.timing
        if timing.error is not None:
            return True
        if not timing.sent_at:
            return False
        first = timing.arrivals[0] if timing.arrivals else perf_counter()
        return first - timing.sent_at > self.ttft_seconds

    def _long(self, gaps: Sequence[float]) -> int:
        return sum(gap > self.itl_seconds for gap in gaps)


async def greatest_rate(
    keeps: Callable[[float], Awaitable[bool]], *, start: float, start_keeps: bool, halvings: int
) -> float:
    """The greatest rate found at which the bounds are kept; 0 where the least tried is too much.

    From `start` it doubles (or halves) the rate until one is kept and the next is not, at most 32
    times up or down, and then halves what lies between them, as ratios, so many times.
    """
    low, high = (start, None) if start_keeps else (0.0, start)
    for _ in range(_MOST_STEPS):
        if low and high:
            break
        rate = low * _FACTOR if low else (high or start) / _FACTOR
        if await keeps(rate):
            low = rate
        else:
            high = rate
    if not low or high is None:
        return low
    for _ in range(halvings):
        rate = (low * high) ** 0.5
        if await keeps(rate):
            low = rate
        else:
            high = rate
    return low


def _allowed(count: int) -> int:
    """How many of so many may be beyond the bound of the 99th percentile."""
    return count * (100 - _SHARE) // 100
