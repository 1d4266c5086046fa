"""Where the time of an engine step goes, part by part: decoding and prefilling.

Every second step is left alone (`plain`); those between are taken apart, by replacing what the
engine calls with calls that take the time. A part's time is its own, without that of the parts that
it calls or of looking at them, so that parts add up to the `total`. It is close to `plain` where
looking disturbs nothing; layers that the compiled library runs in one call cost more one by one.
Figures are means over the middle half of the steps. On a GPU each part is waited for, which a step
that is left alone does not do. What the blocks hold does not matter to the time, so prompts in
front of measured decode steps are not computed.

With `--sampling` whole decode steps are measured instead, in which all sequences choose their
tokens in one way: greedily and in others, in turns, behind pieces of a real text, which are
computed. A ratio is the median over the rounds.

With `--kv` they are whole decode steps and prefill chunks of engines over the same weights, with KV
caches of several types, in turns; with `--invariant` those of the default mode and the
batch-invariant one, on a CPU; with `--tensor-parallel N` those of the model in N processes and in
one, which has as many threads as these have together.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from bench.common.figures import median_ratio, numbers_table
from bench.common.options import add_model, engine_config, set_threads
from bench.registry import BenchError, Result

if TYPE_CHECKING:
    from bench.engine.step_cases import StepBench
    from kernels.kv_format import KvDtype

Cases = Mapping[str, Mapping[str, Sequence[float]]]
"""Seconds of whole steps of each kind, in each case."""

PARTS: Final = {
    "plan": "the scheduler plans",
    "batch": "the batch's tensors are built",
    "embedding": "rows of the embedding",
    "norms": "norms, with the sums of the residual stream",
    "qkv": "product: queries, keys and values",
    "rotation": "rotary embedding and writing to the cache",
    "attention": "attention",
    "out": "product: attention's output",
    "gate_up": "product: gate and up",
    "activation": "activation and gate",
    "down": "product: down",
    "router": "experts are chosen: product, and the best of its results",
    "experts": "what tokens go through of experts, activations included",
    "shared": "products: gate and up, and down, of what is beside experts",
    "head": "product: logits",
    "forward": "the rest of the forward pass; all but attention in a model that is not fused",
    "sampling": "tokens are drawn",
    "commit": "the scheduler takes the tokens",
    "hand_over": "deltas are encoded and sent to the service",
    "other": "the rest of the step",
    "total": "the whole step, taken apart",
    "plain": "the whole step, left alone",
}
BATCHES: Final = (1, 8, 32)
KV_DTYPES: Final[tuple[KvDtype, ...]] = ("auto", "int8")
_TEXT: Final = Path(__file__).parents[2] / "docs" / "engine.md"
SAMPLING_BATCHES: Final = (8, 32)
SAMPLING: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "sampled": {"top_p": 0.95},
    "top_k": {"top_k": 50},
    "min_p": {"min_p": 0.05},
    "penalties": {"frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1},
}
"""How tokens are chosen, at temperature 1 but for the first."""
_CASES: Final = {
    **{f"decode_{batch}": f"decode step, batch {batch}" for batch in BATCHES},
    "prefill": "step of one prefill chunk",
}
_SHARED: Final = {
    f"shared_{batch}": f"decode step, batch {batch}, one context" for batch in BATCHES[1:]
}
FIGURES: Final = (
    {
        f"us_{case}_{part}": f"{what}: {meaning}, us"
        for case, what in _CASES.items()
        for part, meaning in PARTS.items()
    }
    | {
        f"{kind}_over_greedy_{batch}": f"decode step, batch {batch}, {asked}: over greedy"
        for batch in SAMPLING_BATCHES
        for kind, asked in SAMPLING.items()
        if kind != "greedy"
    }
    | {
        f"invariant_over_default_{case.removeprefix('decode_')}": f"{what}, batch-invariant: over "
        "the default"
        for case, what in (_CASES | _SHARED).items()
    }
    | {
        f"{kind}_kv_over_auto_{case}": f"{what}, KV cache in {kind}: over one in the weights' type"
        for case, what in _CASES.items()
        for kind in KV_DTYPES[1:]
    }
    | {
        f"parallel_over_one_{case}": f"{what}: in several processes over in one"
        for case, what in _CASES.items()
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser, "device", "dtype", "quantize", "threads")
    parser.add_argument(
        "--batches", type=int, nargs="+", help="default: 1 8 32; with --sampling 8 32"
    )
    parser.add_argument("--context", type=int, default=512, help="tokens before a decode step")
    parser.add_argument("--chunk", type=int, default=128, help="tokens of a prefill chunk")
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind, and as many")
    whole = parser.add_mutually_exclusive_group()
    whole.add_argument("--kv", action="store_true", help="whole steps by the type of the KV cache")
    whole.add_argument(
        "--invariant", action="store_true", help="whole steps by default and batch-invariant"
    )
    whole.add_argument(
        "--tensor-parallel", type=int, default=1, help="whole steps in so many processes and in one"
    )
    whole.add_argument(
        "--sampling", action="store_true", help="whole steps by the way in which tokens are chosen"
    )


def run(options: argparse.Namespace) -> Result:
    """Measure every case on one model."""
    set_threads(options)
    from bench.engine.step_cases import ParallelBench, StepBench

    config = engine_config(options)
    bench: StepBench | ParallelBench
    if options.tensor_parallel > 1:
        with ParallelBench(config, options.tensor_parallel, options.steps) as bench:
            batches = options.batches or BATCHES
            cases = bench.compared(batches, options.context, options.chunk)
            figures, table = _compared("parallel_over_one", "processes", cases)
    else:
        with StepBench(config, options.steps, PARTS) as bench:
            if options.sampling:
                figures, table = _sampling(bench, options, Path(config.model_path))
            elif options.kv:
                figures, table = _kv(bench, options)
            elif options.invariant:
                figures, table = _invariant(bench, options)
            else:
                figures, table = _parts(bench, options)
    info = bench.info
    found = {"compute_dtype": info.dtype, "compute_device": info.device, "fused": bench.is_fused}
    return Result(figures, [table], found)


def _parts(bench: StepBench, options: argparse.Namespace) -> tuple[dict[str, float], Table]:
    cases = {
        f"decode_{batch}": bench.decode(batch, options.context)
        for batch in options.batches or BATCHES
    }
    cases["prefill"] = bench.prefill(options.chunk)
    figures = {
        f"us_{case}_{part}": 1e6 * seconds[part]
        for case, seconds in cases.items()
        for part in PARTS
    }
    return figures, _table(cases)


def _prompts(count: int, length: int, model: Path) -> list[list[int]]:
    """Pieces of real text: how many tokens are likely decides what choosing takes."""
    from app.prompt.tokenizer import load_tokenizer

    ids = load_tokenizer(model).encode(_TEXT.read_text(), add_special_tokens=False)
    starts = range(0, count * length, length)
    return [[ids[(start + i) % len(ids)] for i in range(length)] for start in starts]


def _sampling(
    bench: StepBench, options: argparse.Namespace, model: Path
) -> tuple[dict[str, float], Table]:
    from engine.api import SamplingParams

    kinds = {kind: SamplingParams(max_tokens=1, **asked) for kind, asked in SAMPLING.items()}
    cases = {
        str(batch): bench.sampled(_prompts(batch, options.context, model), kinds)
        for batch in options.batches or SAMPLING_BATCHES
    }
    return _compared("{}_over_greedy", "tokens are chosen by", cases)


def _kv(bench: StepBench, options: argparse.Namespace) -> tuple[dict[str, float], Table]:
    models = bench.over_caches(KV_DTYPES)
    cases = {
        f"decode_{batch}": bench.decode_in_turns(models, batch, options.context)
        for batch in options.batches or BATCHES
    }
    cases["prefill"] = bench.prefill_in_turns(models, options.chunk, options.context)
    return _compared("{}_kv_over_auto", "KV cache", cases)


def _invariant(bench: StepBench, options: argparse.Namespace) -> tuple[dict[str, float], Table]:
    if bench.info.device != "cpu":
        raise BenchError("--invariant: on a GPU the two modes have products of their own")
    models = bench.in_modes()
    cases = {
        f"{prefix}{batch}": bench.decode_in_turns(models, batch, options.context, shared=shared)
        for prefix, shared in (("", False), ("shared_", True))
        for batch in options.batches or BATCHES
        if batch > 1 or not shared
    }
    cases["prefill"] = bench.prefill_in_turns(models, options.chunk, options.context)
    return _compared("{}_over_default", "mode", cases)


def _compared(figure: str, head: str, cases: Cases) -> tuple[dict[str, float], Table]:
    """What steps of each kind take, and the ratios to those of the first kind."""
    table = numbers_table("a whole step, us (and over that of the first row)", head, *cases)
    figures = {}
    first, *others = next(iter(cases.values()))
    for kind in (first, *others):
        cells = []
        for case, seconds in cases.items():
            ratio = median_ratio(seconds[kind], seconds[first])
            cells.append(f"{1e6 * median(seconds[kind]):,.0f} ({ratio:.3f})")
            if kind != first:
                figures[f"{figure.format(kind)}_{case}"] = ratio
        table.add_row(kind, *cells)
    return figures, table


def _table(cases: dict[str, dict[str, float]]) -> Table:
    table = numbers_table("a step's time, us (and percent of it)", "part", *cases)
    for part in PARTS:
        if any(seconds[part] for seconds in cases.values()):
            row = (
                f"{1e6 * seconds[part]:,.0f} ({seconds[part] / seconds['total']:4.0%})"
                for seconds in cases.values()
            )
            table.add_row(part, *row, end_section=part == "other")
    return table
