"""How long a step takes, from what it computes: one form, fitted here and scaled to the paper.

    seconds = base + token * max(tokens, knee) + sequence * sequences
              + context * context tokens + pair * query-key pairs

The matrix products are a roofline (Williams et al., CACM 2009): below `knee` tokens they wait for
the weights, which are read once whatever the batch, above it for arithmetic. `sequences` are rows
that sample, `context tokens` those whose KV the attention reads, `pairs` the scores of prefill.

`fit` finds the coefficients of the small model from measured steps. `opt_13b_on_a100` has the same
form from data sheets, for the scale of Kwon et al., SOSP 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

_KNEES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one step computes."""

    tokens: int
    """Computed in the step, prefill and decode together."""
    sequences: int
    """Rows that a token is drawn for."""
    context: int
    """Tokens whose KV is read, over all sequences."""
    pairs: int
    """Query-key pairs of the prompts' attention."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Coefficients in seconds; see the module's docstring."""

    base: float
    token: float
    sequence: float
    context: float
    pair: float
    knee: float
    """In tokens."""

    def seconds(self, shape: StepShape) -> float:
        """How long the step takes."""
        return (
            self.base
            + self.token * max(shape.tokens, self.knee)
            + self.sequence * shape.sequences
            + self.context * shape.context
            + self.pair * shape.pairs
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted cost, and how far it is from the steps that it was fitted to."""

    cost: StepCost
    error_mean: float
    """Mean of |predicted - measured| / measured."""
    error_total: float
    """|predicted - measured| / measured of all steps' time together."""


def fit(shapes: Sequence[StepShape], seconds: Sequence[float]) -> Fit:
    """Least squares of the relative error, with coefficients that are not negative."""
    measured = np.array(seconds)
    rows = np.array([astuple(shape) for shape in shapes], dtype=float)
    fits = [_fit_with_knee(rows, measured, knee) for knee in _KNEES]
    return min(fits, key=lambda found: found.error_mean)


def _fit_with_knee(rows: np.ndarray, measured: np.ndarray, knee: float) -> Fit:
    features = np.column_stack([np.ones(len(rows)), np.maximum(rows[:, 0], knee), rows[:, 1:]])
    weighted = features / measured[:, None]
    used = list(range(features.shape[1]))
    solution = np.zeros(features.shape[1])
    for _ in range(features.shape[1]):
        part, *_ = np.linalg.lstsq(weighted[:, used], np.ones(len(rows)), rcond=None)
        if (part >= 0).all():
            solution[used] = part
            break
        del used[int(np.argmin(part * features[:, used].mean(axis=0)))]
    predicted = features @ solution
    return Fit(
        StepCost(*map(float, [*solution, knee])),
        float(np.mean(np.abs(predicted - measured) / measured)),
        float(abs(predicted.sum() - measured.sum()) / measured.sum()),
    )


# OPT-13B in half precision (Zhang et al., 2022) and the data sheet of the A100-SXM4-40GB.
_LAYERS, _HIDDEN, _PARAMETERS, _BYTES = 40, 5120, 12.85e9, 2
_BANDWIDTH, _BANDWIDTH_SHARE = 1.555e12, 0.85
_ARITHMETIC, _ARITHMETIC_SHARE = 312e12, 0.5
_LAUNCH_SECONDS, _LAUNCHES_PER_LAYER = 5e-6, 10
_SAMPLE_SECONDS = 20e-6
_KV_MEMORY_BYTES = 12 * 2**30

KV_BYTES_PER_TOKEN = 2 * _LAYERS * _HIDDEN * _BYTES
PAPER_SLOTS = _KV_MEMORY_BYTES // KV_BYTES_PER_TOKEN


def opt_13b_on_a100() -> StepCost:
    """The paper's model and machine: 25.7 GB of weights, 800 KiB of KV a token, 15.7k slots.

    85 % of 1.555 TB/s and half of 312 TFLOP/s are reached; a layer launches 10 kernels at 5 us, and
    drawing a token takes 20 us. A token costs two operations a weight, a pair four a hidden unit
    and layer.
    """
    bandwidth = _BANDWIDTH * _BANDWIDTH_SHARE
    arithmetic = _ARITHMETIC * _ARITHMETIC_SHARE
    token = 2 * _PARAMETERS / arithmetic
    return StepCost(
        base=_LAUNCH_SECONDS * _LAUNCHES_PER_LAYER * _LAYERS,
        token=token,
        sequence=_SAMPLE_SECONDS,
        context=KV_BYTES_PER_TOKEN / bandwidth,
        pair=4 * _HIDDEN * _LAYERS / arithmetic,
        knee=_PARAMETERS * _BYTES / bandwidth / token,
    )
