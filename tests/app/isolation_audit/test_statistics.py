"""The tests that an audit rests on, against values that are known."""

from __future__ import annotations

import math
import random

import pytest

from app.isolation_audit.statistics import holm, same_distribution, same_frequencies


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


def test_values_that_repeat_count_once() -> None:
    assert same_distribution([1.0] * 30, [1.0] * 30) == 1.0
    assert same_distribution([1.0] * 30, [2.0] * 30) < 1e-9


def test_samples_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="as many"):
        same_distribution([1.0], [1.0, 2.0])


@pytest.mark.parametrize("sides", [([], [1.0]), ([1.0], [])])
def test_an_empty_sample_is_refused(sides: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="both samples"):
        same_distribution(*sides)
    with pytest.raises(ValueError, match="both samples"):
        same_frequencies(*([str(value) for value in side] for side in sides))


def exact_p(size: int, distance: int) -> float:
    """That two samples of one distribution are `distance / size` apart or more, as paths count."""
    ways = {0: 1.0}  # by how much longer one sample is than the other so far; never `distance`
    for step in range(2 * size):
        further: dict[int, float] = {}
        for lead, count in ways.items():
            ones, others = (step + lead) // 2, (step - lead) // 2
            for next_lead, left in ((lead + 1, size - ones), (lead - 1, size - others)):
                if abs(next_lead) < distance and left:
                    share = count * left / (2 * size - step)
                    further[next_lead] = further.get(next_lead, 0.0) + share
        ways = further
    return 1 - ways[0]


@pytest.mark.parametrize(("size", "distance"), [(10, 6), (40, 12), (250, 25), (250, 33), (250, 45)])
def test_the_p_value_is_that_of_the_exact_distribution(size: int, distance: int) -> None:
    one = [float(value) for value in range(size)]
    other = [value + distance - 0.5 for value in one]
    exact = exact_p(size, distance)
    assert same_distribution(one, other) == pytest.approx(exact)


def test_the_p_value_of_a_table() -> None:
    # Smirnov's tables: of 10 a side, 0.0123 of all pairs of samples are 0.7 apart or more.
    assert same_distribution([*range(10)], [value + 6.5 for value in range(10)]) == pytest.approx(
        0.0123, abs=0.0001
    )


def test_frequencies_have_the_p_value_of_the_exact_test() -> None:
    # Fisher's lady tasting tea: 3 of 4 against 1 of 4 has p = 34/70 on both sides.
    found = same_frequencies([*"aaab"], [*"abbb"])
    assert found == pytest.approx(34 / 70, abs=0.02)


def test_frequencies_of_many_values_have_the_p_value_of_chi_square() -> None:
    # Counts 60, 40, 50 and 40, 60, 50: chi-square is 8 with 2 degrees of freedom, p = exp(-4).
    one, other = [*"a" * 60 + "b" * 40 + "c" * 50], [*"a" * 40 + "b" * 60 + "c" * 50]
    assert same_frequencies(one, other) == pytest.approx(math.exp(-4), abs=0.006)


def test_frequencies_that_nothing_tells_apart() -> None:
    assert same_frequencies(["a"] * 9, ["a"] * 5) == 1
    new = [str(number) for number in range(100)]
    assert same_frequencies(new[:50], new[50:]) == 1
    assert same_frequencies(["a"] * 50, ["b"] * 50) == pytest.approx(1 / 20_000)


def test_holm_corrects_the_smallest_by_all_and_keeps_their_order() -> None:
    # Holm's own example of 1979 has 0.01, 0.03, 0.03 and 0.04 in another order.
    found = holm({"a": 0.03, "b": 0.01, "c": 0.04, "d": 0.03})
    assert found == pytest.approx({"b": 0.04, "a": 0.09, "d": 0.09, "c": 0.09})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
