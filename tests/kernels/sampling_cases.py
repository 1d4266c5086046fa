"""Rows of scores of every kind, and what is asked of them; drawn alike in every process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.noise import noise_states
from kernels.types import Masks

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_KINDS = ("plain", "ties", "holes", "flat", "steep", "odd")


def numbers(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """One row's, as `kernels.sampling.draw` takes them."""
    inverse = float(np.float32(1 / temperature)) if temperature else 0.0
    widest = abs(float(np.float32(math.log(min_p)))) if min_p else math.inf
    return [inverse, top_k, top_p, widest]


def columns(rows: Sequence[list[float]]) -> Tensor:
    """Of a batch."""
    return torch.tensor(rows, dtype=torch.float64).t().contiguous()


def batches(count: int, sizes: Sequence[int], num_rows: int) -> Iterator[tuple[Tensor, ...]]:
    """Scores, states and numbers of so many batches."""
    rng = np.random.default_rng(11)
    for index in range(count):
        size = int(rng.choice(sizes))
        scores = _scores(rng, _KINDS[index % len(_KINDS)], num_rows, size)
        seeds, positions = rng.integers(0, 2**63 - 1, num_rows), rng.integers(0, 999, num_rows)
        asked = [
            numbers(
                float(rng.choice([0, 1e-30, 0.01, 0.7, 1, 3, 1e30])),
                int(rng.choice([0, 1, 5, 40, 10**6])),
                float(rng.choice([0, 1e-9, 0.3, 0.5, 0.95, 0.99999, 1])),
                float(rng.choice([0, 0, 0.05, 1])),
            )
            for _ in range(num_rows)
        ]
        states = torch.from_numpy(noise_states(seeds.tolist(), positions.tolist()))
        yield scores.to(DTYPES[index // len(_KINDS) % len(DTYPES)]), states, columns(asked)


def masks_of(scores: Tensor, seed: int) -> Masks:
    """Masks of every other row, in another order: full and empty words, and those in between."""
    rng = np.random.default_rng(seed)
    num_rows, size = scores.shape
    places = np.full(num_rows, -1)
    places[::2] = rng.permutation(len(places[::2]))
    words = rng.integers(-(2**31), 2**31, (len(places[::2]), -(-size // 32) + seed % 2))
    words[rng.random(words.shape) < 0.3] = 0
    words[rng.random(words.shape) < 0.3] = -1
    return Masks(torch.from_numpy(places), torch.from_numpy(words.astype(np.int32)))


def _scores(rng: np.random.Generator, kind: str, num_rows: int, size: int) -> Tensor:
    scores = rng.normal(size=(num_rows, size)) * 3
    if kind == "ties":
        scores = scores.round()
    elif kind == "holes":
        scores[rng.random(scores.shape) < 0.5] = -math.inf
    elif kind == "flat":
        scores[:] = 1.5
    elif kind == "steep":
        scores *= 8
    elif kind == "odd":
        scores[rng.random(scores.shape) < 0.3] = math.nan
        scores[0, 0] = math.inf
        scores[-1] = -math.inf
    return torch.from_numpy(scores).float()
