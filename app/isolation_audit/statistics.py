"""Whether two samples come from one distribution, and what several such tests say together."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

_PERMUTATIONS = 19_999


def same_distribution(one: Sequence[float], other: Sequence[float]) -> float:
    """The p-value of the two-sample Kolmogorov-Smirnov test (two-sided), for samples of one size.

    Small values say that the samples come from different distributions. Exact (Gnedenko and
    Korolyuk, 1951) where no value repeats; else it errs towards large p-values. Raises `ValueError`
    for samples that are empty, or of different sizes.
    """
    size = len(one)
    if not size or size != len(other):
        raise ValueError("both samples must have values, and as many")
    first, second = sorted(one), sorted(other)
    furthest = max(
        abs(bisect_right(first, value) - bisect_right(second, value)) for value in [*first, *second]
    )
    if not furthest:
        return 1.0
    ways = math.comb(2 * size, size)
    leads = range(furthest, size + 1, furthest)
    terms = [math.comb(2 * size, size - lead) for lead in leads]
    return min(1.0, 2 * (sum(terms[::2]) - sum(terms[1::2])) / ways)


def same_frequencies(one: Sequence[str], other: Sequence[str], seed: int = 0) -> float:
    """The p-value of the permutation test on Pearson's chi-square (two-sided).

    The pooled values are dealt out at random again and again; it is how often the two hands differ
    as much as the samples do. So it needs no frequency to be large, and is 1 where all values are
    alike, or each occurs once. Never below 1 in 20,000. Raises `ValueError` for an empty sample.
    """
    if not one or not other:
        raise ValueError("both samples must have values")
    first = Counter(one)
    pooled = first + Counter(other)
    if len(pooled) == 1:
        return 1.0
    totals = np.array(list(pooled.values()))
    expected = totals * (len(one) / totals.sum())
    # Of a value's two counts the second follows from the first: this is the whole statistic, but
    # for a factor that dealing out does not change.
    dealt = np.random.default_rng(seed).multivariate_hypergeometric(
        totals, len(one), size=_PERMUTATIONS
    )
    distances = ((dealt - expected) ** 2 / expected).sum(axis=1)
    found = (np.array([first[value] for value in pooled]) - expected) ** 2 / expected
    as_far = int((distances >= found.sum() * (1 - 1e-9)).sum())
    return (1 + as_far) / (1 + _PERMUTATIONS)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """The p-values of several tests, corrected so that all of them together may be looked at.

    Whoever takes those up to `alpha` for findings is wrong about any with a probability of at most
    `alpha` (Holm, Scandinavian Journal of Statistics 6, 1979).
    """
    corrected: dict[str, float] = {}
    highest = 0.0
    for index, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - index) * p_values[name]))
        corrected[name] = highest
    return corrected
