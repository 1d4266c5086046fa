"""The statistics that the benches report."""

from __future__ import annotations

import math
import random

import pytest

from bench.common.figures import percentile, same_distribution


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile([7.0], 99) == 7
    assert percentile([], 99) == 0


def test_samples_of_one_distribution_are_told_apart_as_rarely_as_the_p_value_says() -> None:
    draw = random.Random(0)

    def sample() -> list[float]:
        return [draw.lognormvariate(0.0, 1.0) for _ in range(250)]

    found = [same_distribution(sample(), sample()) for _ in range(300)]
    assert 0.01 < sum(p < 0.05 for p in found) / len(found) < 0.08
    assert 0.38 < sum(p < 0.5 for p in found) / len(found) < 0.6


def test_a_shift_is_seen() -> None:
    draw = random.Random(0)
    one = [draw.gauss(100.0, 10.0) for _ in range(250)]
    other = [draw.gauss(105.0, 10.0) for _ in range(250)]
    assert same_distribution(one, other) < 0.001
    assert same_distribution(one, one) == 1.0


def test_the_critical_value_of_the_tables_has_its_p_value() -> None:
    # 1.358 * sqrt((n + m) / (n m)) is the 5 % point of large samples.
    size = 2000
    shift = round(1.358 * math.sqrt(2 / size) * size)
    one = [float(value) for value in range(size)]
    other = [value + shift for value in one]
    assert same_distribution(one, other) == pytest.approx(0.05, abs=0.002)


def test_ties_and_unequal_sizes_count() -> None:
    assert same_distribution([1.0] * 30, [1.0] * 50) == 1.0
    assert same_distribution([1.0] * 30, [2.0] * 50) < 1e-9


def test_an_empty_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="both samples"):
        same_distribution([], [1.0])
