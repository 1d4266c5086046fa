"""How long prompts and answers are, and when they come: the traces that systems are compared on.

ShareGPT and Alpaca lengths are synthetic: log-normal, clipped to the model's context, with exactly
the means of Kwon et al., SOSP 2023, figure 11. Their spread follows from that paper, too: figures 2
and 13 tell how many slots requests hold on average, and so the answers' size-biased mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bench.common.traces import draw_lengths, read_trace

CONTEXT_TOKENS = 2048
_REFERENCE_SAMPLES = 200_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of each request's prompt and answer; together never more than `CONTEXT_TOKENS`."""

    name: str
    prompts: list[int]
    outputs: list[int]

    @property
    def mean_prompt(self) -> float:
        """Tokens."""
        return sum(self.prompts) / len(self.prompts)

    @property
    def mean_output(self) -> float:
        """Tokens."""
        return sum(self.outputs) / len(self.outputs)


@dataclass(frozen=True, slots=True)
class _LogNormal:
    """Means after clipping, and the standard deviations of the logarithms."""

    mean_prompt: float
    mean_output: float
    spread_prompt: float
    spread_output: float


_SHAREGPT = _LogNormal(161.31, 337.99, 1.0, 0.8)
_ALPACA = _LogNormal(19.31, 58.45, 0.5, 1.1)
# Prompt and answer of one sentence, as WMT16 English-German has them in Llama's tokens.
_TRANSLATION = _LogNormal(30.0, 40.0, 0.5, 0.5)


def sharegpt(count: int, seed: int = 0) -> Lengths:
    """Chat: long answers."""
    return _synthetic("ShareGPT", _SHAREGPT, count, seed)


def alpaca(count: int, seed: int = 0) -> Lengths:
    """Instructions: short prompts, short answers."""
    return _synthetic("Alpaca", _ALPACA, count, seed)


def translation(count: int, seed: int = 0) -> Lengths:
    """Sentences to translate, without the examples that come before them."""
    return _synthetic("translation", _TRANSLATION, count, seed)


def azure(count: int, path: Path | None, seed: int = 0) -> Lengths:
    """The Azure conversation trace of 2023 (Patel et al., Splitwise, ISCA 2024), in random order.

    Without a file at `path`: log-normal lengths of the same mean and spread. Prompts are cut so
    that prompt and answer fit the context.
    """
    draw = np.random.default_rng(seed)
    name = "Azure"
    if path is not None and path.is_file():
        rows = [(one.prompt_tokens, one.output_tokens) for one in read_trace(path)]
        chosen = np.resize(np.array(rows)[draw.permutation(len(rows))], (count, 2))
    else:
        chosen = draw_lengths(count, draw)
        name = "Azure (synthetic)"
    prompts, outputs = _clip(chosen[:, 0].astype(float), chosen[:, 1].astype(float))
    return Lengths(name, prompts.tolist(), outputs.tolist())


def poisson_arrivals(count: int, rate: float, seed: int = 0) -> list[float]:
    """When `count` requests come, in seconds, at `rate` a second.

    The same seed gives the same pattern at every rate, only faster or slower.
    """
    gaps = np.random.default_rng(seed).exponential(1.0, count)
    times: list[float] = np.cumsum(gaps / rate).tolist()
    return times


def _synthetic(name: str, shape: _LogNormal, count: int, seed: int) -> Lengths:
    prompts, outputs = _clip(*_log_normal(shape, _scales(shape), count, seed))
    return Lengths(name, prompts.tolist(), outputs.tolist())


@cache
def _scales(shape: _LogNormal) -> tuple[float, float]:
    """Medians for which the means after clipping are those of `shape`."""
    prompt, output = shape.mean_prompt, shape.mean_output
    for _ in range(20):
        prompts, outputs = _clip(*_log_normal(shape, (prompt, output), _REFERENCE_SAMPLES, 0))
        prompt *= shape.mean_prompt / prompts.mean()
        output *= shape.mean_output / outputs.mean()
    return prompt, output


def _log_normal(
    shape: _LogNormal, scales: tuple[float, float], count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """More of them begin with the same ones: a trace at twice the rate goes on where it ended."""
    spreads = (shape.spread_prompt, shape.spread_output)
    prompts, outputs = (
        np.random.default_rng((seed, part)).lognormal(math.log(scale), spread, count)
        for part, (scale, spread) in enumerate(zip(scales, spreads, strict=True))
    )
    return prompts, outputs


def _clip(prompts: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole tokens, at least one each, together at most the context; the prompt gives way."""
    out = np.clip(np.rint(outputs), 1, CONTEXT_TOKENS - 1).astype(int)
    return np.minimum(np.maximum(np.rint(prompts), 1).astype(int), CONTEXT_TOKENS - out), out
