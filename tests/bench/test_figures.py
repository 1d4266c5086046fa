"""The statistics that the benches report."""

from __future__ import annotations

from bench.common.figures import percentile


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile([7.0], 99) == 7
    assert percentile([], 99) == 0
