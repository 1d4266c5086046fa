"""Statistics over what was measured."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

_TERMS = 100


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of all values do not exceed; 0 of nothing."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def same_distribution(one: Sequence[float], other: Sequence[float]) -> float:
    """The p-value of the two-sample Kolmogorov-Smirnov test (two-sided).

    Small values say that the samples come from different distributions. The statistic's limiting
    distribution is used with Stephens' correction for finite samples (JRSS B 32, 1970), which is
    good from about 10 samples a side. Raises `ValueError` for an empty sample.
    """
    if not one or not other:
        raise ValueError("both samples must have values")
    first, second = sorted(one), sorted(other)
    distance = max(
        abs(bisect_right(first, value) / len(first) - bisect_right(second, value) / len(second))
        for value in [*first, *second]
    )
    size = math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    scaled = (size + 0.12 + 0.11 / size) * distance
    if scaled < 0.2:  # the series below converges too slowly, to a value that rounds to 1
        return 1.0
    terms = ((1 if k % 2 else -1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, _TERMS))
    return min(1.0, max(0.0, 2 * sum(terms)))
