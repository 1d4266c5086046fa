"""The Azure conversation trace of 2023 (Patel et al., Splitwise, ISCA 2024), or one like it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from bench.registry import BenchError

DEFAULT_TRACE: Final = Path("../shared/traces/azure_conv_2023.csv")

# Of prompts and answers: means and standard deviations of the logarithms, and the longest.
_LOG_MEAN = (6.633, 5.019)
_LOG_SPREAD = (0.985, 0.859)
_LONGEST = (14_050, 1_000)


@dataclass(frozen=True, slots=True)
class Traced:
    """A request of the trace: seconds since the first one, tokens of its prompt and its answer."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[Traced]:
    """The requests of the file, in order of arrival. Raises `BenchError` if it is no such trace."""
    try:
        with path.open(newline="") as file:
            rows = [
                (
                    datetime.fromisoformat(row["TIMESTAMP"]),
                    int(row["ContextTokens"]),
                    int(row["GeneratedTokens"]),
                )
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: no trace in Azure's format ({error})") from error
    if not rows:
        raise BenchError(f"{path} is empty")
    return [Traced((at - rows[0][0]).total_seconds(), *lengths) for at, *lengths in rows]


def draw_lengths(count: int, draw: np.random.Generator) -> np.ndarray:
    """Tokens of prompts and answers with the trace's means and spreads: `[count, 2]`."""
    logs = draw.normal(_LOG_MEAN, _LOG_SPREAD, (count, 2))
    return np.minimum(np.exp(logs), _LONGEST).astype(int)


def draw_trace(count: int, seed: int) -> list[Traced]:
    """Requests of such lengths, one a second on average, at random times."""
    draw = np.random.default_rng(seed)
    times = np.cumsum(draw.exponential(1.0, count)).tolist()
    lengths = draw_lengths(count, draw).tolist()
    return [Traced(at, *row) for at, row in zip(times, lengths, strict=True)]
