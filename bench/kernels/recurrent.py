"""Recurrent layers on this CPU: a Gated DeltaNet of Qwen3.5-0.8B, beside transformers' own.

The convolution (6,144 channels over 4 tokens) and the state's part (16 heads of 128 x 128 float32)
of one layer, for sequences that decode and for a prompt. Beside them, in turns, what `transformers`
computes for the same in torch, on states that lie in one tensor, and a copy of the states' bytes,
which is what decoding cannot do without. Medians; ratios are of the same round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from bench.common.figures import listed, median_ratio
from bench.registry import BenchError, Result
from kernels import recurrent
from kernels.huge_pages import lazy_zeros
from kernels.native import library
from kernels.types import StatePlace, StateRuns

CASES: Final = {
    **{f"decode_{count}": (count, 1) for count in (1, 8, 32)},
    "prompt_512": (1, 512),
}
"""Sequences, and tokens of each."""
_HEADS, _DIM, _WIDTH = 16, 128, 4
_CHANNELS: Final = 3 * _HEADS * _DIM
_ROUNDS: Final = 15
FIGURES: Final = {
    **{
        f"{case}_{name}": f"{meaning}; {count} x {length} tokens"
        for case, (count, length) in CASES.items()
        for name, meaning in {
            "us": "convolution and delta rule of a layer, microseconds",
            "torch_ratio": "time of transformers' functions, over this",
            "copy_ratio": "time to copy the states, over this",
        }.items()
    },
    "delta_flops": "of the delta rule in the prompt: three products with the state a token, "
    "operations a second",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `bench.registry.Bench`."""
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")


@torch.inference_mode()
def run(options: argparse.Namespace) -> Result:
    """See `bench.registry.Bench`."""
    if not library.available():
        raise BenchError(f"the compiled kernels are not there: {library.problem()}")
    figures: dict[str, float] = {}
    for case, (count, length) in CASES.items():
        layer = Layer.drawn(count, length, getattr(torch, options.dtype))
        ways = [layer.compute, layer.in_torch, layer.copy, layer.apply_delta]
        ours, theirs, copies, delta = _in_turns(ways)
        figures[f"{case}_us"] = median(ours) * 1e6
        figures[f"{case}_torch_ratio"] = median_ratio(theirs, ours)
        figures[f"{case}_copy_ratio"] = median_ratio(copies, ours)
        if length > 1:
            figures["delta_flops"] = 6 * length * _HEADS * _DIM**2 / median(delta)
    known = {"threads": torch.get_num_threads(), "instructions": library.level()}
    return Result(figures, [listed(figures, FIGURES)], known)


def _in_turns(ways: list[Callable[[], object]]) -> list[list[float]]:
    """Seconds of each in each round, but for the first, which warms up."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(_ROUNDS + 1):
        for way, taken in zip(ways, seconds, strict=True):
            start = perf_counter()
            way()
            taken.append(perf_counter() - start)
    return [taken[1:] for taken in seconds]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's tokens, its states, and a second place for these."""

    length: int
    mixed: Tensor  # [tokens, channels]
    weight: Tensor
    decay: Tensor
    beta: Tensor
    runs: StateRuns
    inputs: Tensor  # bytes, [sequences, ...]
    states: Tensor
    other: Tensor

    @classmethod
    def drawn(cls, count: int, length: int, dtype: torch.dtype) -> Layer:
        """For `count` sequences, of `length` tokens each."""
        tokens, pages = count * length, torch.arange(count, dtype=torch.int32)[:, None]
        state_bytes, input_bytes = _HEADS * _DIM * _DIM * 4, _CHANNELS * _WIDTH * dtype.itemsize
        states, other = (lazy_zeros(count * state_bytes).view(count, -1) for _ in range(2))
        inputs = lazy_zeros(count * input_bytes).view(count, -1)
        states.view(torch.float32).normal_()
        inputs.view(dtype).normal_()
        return cls(
            length,
            torch.randn(tokens, _CHANNELS).to(dtype),
            torch.randn(_CHANNELS, _WIDTH).to(dtype),
            -torch.rand(tokens, _HEADS),
            torch.rand(tokens, _HEADS),
            StateRuns(torch.arange(count + 1, dtype=torch.int32) * length, pages, pages),
            inputs,
            states,
            other,
        )

    def compute(self) -> Tensor:
        """By the kernels."""
        place = StatePlace(((0, _CHANNELS, 0, 0),), (_CHANNELS, _WIDTH), self.mixed.dtype)
        places = (self.runs, self.inputs, place)
        return self._delta(recurrent.convolve(self.mixed, self.weight, None, "silu", *places))

    def apply_delta(self) -> Tensor:
        """The state's part alone."""
        return self._delta(self.mixed)

    def _delta(self, mixed: Tensor) -> Tensor:
        place = StatePlace(((0, _HEADS, 0, 0),), (_HEADS, _DIM, _DIM), torch.float32)
        q, k, v = mixed.view(-1, 3, _HEADS, _DIM).unbind(1)
        places = (self.runs, self.states, place)
        return recurrent.gated_delta(q, k, v, self.decay, self.beta, *places)

    def in_torch(self) -> object:
        """By the functions of `transformers`, all sequences at once."""
        from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

        by_sequence = self.mixed.view(-1, self.length, _CHANNELS).transpose(1, 2)
        inputs = self.inputs.view(self.mixed.dtype).view(-1, _CHANNELS, _WIDTH)
        rule: Callable[..., Any] = qwen.torch_chunk_gated_delta_rule
        if self.length == 1:
            made = qwen.causal_conv1d_update(by_sequence, inputs, self.weight, None, "silu")
            rule = qwen.torch_recurrent_gated_delta_rule
        else:
            made = qwen.causal_conv1d_fn(by_sequence, self.weight, None, "silu")
        rows = made.transpose(1, 2).unflatten(2, (3, _HEADS, _DIM))
        decay, beta = (part.view(-1, self.length, _HEADS) for part in (self.decay, self.beta))
        return rule(
            *rows.unbind(2),
            g=decay,
            beta=beta,
            initial_state=self.states.view(torch.float32).view(-1, _HEADS, _DIM, _DIM),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )

    def copy(self) -> Tensor:
        """The states to another place."""
        return self.other.copy_(self.states)
