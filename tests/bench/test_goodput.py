"""Goodput: which rates are kept, and how the greatest one is found."""

from __future__ import annotations

from time import perf_counter

import pytest

from bench.common.drivers import Ask, Timing
from bench.common.load import Arrival, Sent
from bench.service.loads.mixed import Bounds, greatest_rate

BOUNDS = Bounds(ttft_seconds=1.0, itl_seconds=0.1)


def sent(ttft: float, *gaps: float, answered: bool = True, error: str | None = None) -> Sent:
    """A request sent ten seconds ago."""
    timing = Timing(sent_at=perf_counter() - 10, error=error)
    timing.arrivals = [timing.sent_at + ttft]
    for gap in gaps:
        timing.arrivals.append(timing.arrivals[-1] + gap)
    ask = Ask(api_key="key", system="", question="q", output_tokens=11)
    return Sent(Arrival(due_seconds=0.0, tenant="key", ask=ask), timing, answered)


def unanswered(waited: float) -> Sent:
    one = sent(0.0, answered=False)
    one.timing.sent_at = perf_counter() - waited
    one.timing.arrivals.clear()
    return one


def test_one_in_a_hundred_may_be_late() -> None:
    good = [sent(0.5, 0.01)] * 99
    assert BOUNDS.kept([*good, sent(5.0, 0.01)])
    assert not BOUNDS.kept([*good[1:], sent(5.0), sent(5.0)])
    assert not BOUNDS.kept([*good[:50], sent(5.0)])
    assert not BOUNDS.kept([*good[:50], sent(0.5, answered=False)])
    assert not BOUNDS.kept([*good[:50], sent(0.5, error="no")])


def test_one_gap_in_a_hundred_may_be_long() -> None:
    assert BOUNDS.kept([sent(0.5, *[0.01] * 99, 0.5)])
    assert not BOUNDS.kept([sent(0.5, *[0.01] * 98, 0.5, 0.5)])


def test_it_is_hopeless_only_once_nothing_can_mend_it() -> None:
    waiting = [unanswered(0.0)] * 199
    assert not BOUNDS.hopeless([*waiting, sent(5.0)])
    assert not BOUNDS.hopeless([*waiting[1:], sent(5.0), unanswered(5.0)])
    assert BOUNDS.hopeless([*waiting[2:], sent(5.0), unanswered(5.0), sent(0.1, error="no")])
    # 20 requests have 200 gaps at most, two of which may be long.
    assert not BOUNDS.hopeless([*waiting[:19], sent(0.5, 0.5, 0.5)])
    assert BOUNDS.hopeless([*waiting[:19], sent(0.5, 0.5, 0.5, 0.5)])


@pytest.mark.parametrize(
    ("limit", "found"),
    [(3.0, 2.83), (1.0, 1.0), (0.9, 0.84), (0.001, 0.0), (1000.0, 32.0), (2.0, 2.0)],
)
async def test_the_greatest_rate_is_found_to_a_fifth(limit: float, found: float) -> None:
    tried: list[float] = []

    async def keeps(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    rate = await greatest_rate(keeps, start=1.0, start_keeps=limit >= 1.0, halvings=2)
    assert rate == pytest.approx(found, abs=0.01)
    assert len(set(tried)) == len(tried) <= 7
    assert 1.0 not in tried
