"""Random bits of (seed, position, token), and the noise that they are turned into."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.noise import CELL_BITS, cells, gumbel, noise_bits, noise_states
from tests.effort import scaled


def noise(seeds: list[int], positions: Iterable[int], size: int) -> np.ndarray:
    states = noise_states(seeds, list(positions))
    return np.stack([gumbel(cells(noise_bits(state, np.arange(size)))) for state in states])


def test_noise_is_gumbel_and_independent_over_seeds_positions_and_tokens() -> None:
    one = noise([42] * 200, range(200), 300)
    expected = np.exp(-np.exp(-np.sort(one.ravel())))
    seen = np.arange(one.size) / one.size
    assert np.abs(expected - seen).max() < 1.95 / one.size**0.5  # Kolmogorov-Smirnov, p = 0.001
    pairs = [
        (one[:-1], one[1:]),
        (one[:, :-1], one[:, 1:]),
        (one, noise([43] * 200, range(200), 300)),
    ]
    for first, second in pairs:
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02


def splitmix(state: int, count: int) -> list[int]:
    """The generator as its authors wrote it, over Python's own integers."""
    mask, values = 2**64 - 1, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        value = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        values.append(value ^ (value >> 31))
    return values


@given(
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    position=st.integers(0, 2**31),
)
@settings(max_examples=scaled(40))
def test_noise_has_the_bits_of_its_source(seeds: list[int], position: int) -> None:
    states = noise_states(seeds, [position] * len(seeds))
    for seed, start in zip(seeds, states.tolist(), strict=True):
        assert start % 2**64 == splitmix(splitmix(seed, 1)[0] + position * 0x9E3779B97F4A7C15, 1)[0]
    bits = [noise_bits(start, np.arange(70)).tolist() for start in states]
    assert bits == [splitmix(start, 70) for start in states.tolist()]


def test_noise_is_finite_at_both_ends() -> None:
    first, last = gumbel(np.array([0, 2**CELL_BITS - 1]))
    assert -4 < first < -3
    assert 36 < last < 37
