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
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.table import Table

from bench.common.machine import warn_if_busy
from bench.registry import BenchError, Result, parameters
from engine.config import EngineConfig
from engine.model.weights import DEFAULT_MODEL, resolve_model
from engine.system.threads import thread_environment

if TYPE_CHECKING:
    from bench.engine.step_cases import StepBench
    from kernels.kv_format import KvDtype

_Kind = TypeVar("_Kind", bound=str)

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
FIGURES: Final = (
    {
        f"us_{case}_{part}": f"{what}: {meaning}, us"
        for case, what in [
            *((f"decode_{batch}", f"decode step, batch {batch}") for batch in BATCHES),
            ("prefill", "step of one prefill chunk"),
        ]
        for part, meaning in PARTS.items()
    }
    | {
        f"{kind}_over_greedy_{batch}": f"decode step, batch {batch}, {asked}: over greedy"
        for batch in SAMPLING_BATCHES
        for kind, asked in SAMPLING.items()
        if kind != "greedy"
    }
    | {
        f"invariant_over_default_{case}": f"{what}, batch-invariant: over the default"
        for case, what in [
            *((f"{batch}", f"decode step, batch {batch}") for batch in BATCHES),
            *(
                (f"shared_{batch}", f"decode step, batch {batch}, one context")
                for batch in BATCHES[1:]
            ),
            ("prefill", "step of one prefill chunk"),
        ]
    }
    | {
        f"{kind}_kv_over_auto_{case}": f"{what}, KV cache in {kind}: over one in the weights' type"
        for case, what in [
            *((f"decode_{batch}", f"decode step, batch {batch}") for batch in BATCHES),
            ("prefill", "step of one prefill chunk"),
        ]
        for kind in KV_DTYPES[1:]
    }
    | {
        f"parallel_over_one_{case}": f"{what}: in several processes over in one"
        for case, what in [
            *((f"decode_{batch}", f"decode step, batch {batch}") for batch in BATCHES),
            ("prefill", "step of one prefill chunk"),
        ]
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model that is run")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", help="type of weights and KV cache")
    parser.add_argument("--quantize", default="auto", choices=["auto", "none", "int8", "int4"])
    parser.add_argument("--threads", type=int, help="CPU threads of the model; one a core")
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
    foreign = warn_if_busy()
    # As in the engine's own process; before anything imports torch.
    os.environ.update(thread_environment(options.threads))
    from bench.engine.step_cases import StepBench
    from bench.engine.step_parallel import ParallelBench

    config = EngineConfig(
        model_path=str(resolve_model(options.model)),
        device=options.device,
        dtype=options.dtype,
        quantize=options.quantize,
        threads=options.threads,
    )
    bench: StepBench | ParallelBench
    if options.tensor_parallel > 1:
        with ParallelBench(config, options.tensor_parallel, options.steps) as bench:
            batches = options.batches or BATCHES
            figures, table = bench.compared(batches, options.context, options.chunk)
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
    reported = parameters(
        options,
        foreign_load_percent=foreign,
        compute_dtype=bench.info.dtype,
        compute_device=bench.info.device,
        fused=bench.is_fused,
    )
    return Result(reported, figures, [table])


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

    kinds = {
        kind: SamplingParams(max_tokens=1, **options_of_kind)
        for kind, options_of_kind in SAMPLING.items()
    }
    batches = options.batches or SAMPLING_BATCHES
    table = Table(title="a whole decode step, us (and over greedy)")
    table.add_column("tokens are chosen by")
    taken = {
        batch: bench.sampled(_prompts(batch, options.context, model), kinds) for batch in batches
    }
    for batch in batches:
        table.add_column(f"batch {batch}", justify="right")
    figures = {}
    for kind in kinds:
        cells = []
        for batch, seconds in taken.items():
            pairs = zip(seconds[kind], seconds["greedy"], strict=True)
            ratio = median(one / greedy for one, greedy in pairs)
            cells.append(f"{1e6 * median(seconds[kind]):,.0f} ({ratio:.3f})")
            if kind != "greedy":
                figures[f"{kind}_over_greedy_{batch}"] = ratio
        asked = ", ".join(f"{name} {value:g}" for name, value in SAMPLING[kind].items())
        table.add_row(asked or "temperature 1", *cells)
    return figures, table


def _kv(bench: StepBench, options: argparse.Namespace) -> tuple[dict[str, float], Table]:
    cases = {
        f"decode_{batch}": bench.decode_by_cache(batch, options.context, KV_DTYPES)
        for batch in options.batches or BATCHES
    }
    cases["prefill"] = bench.prefill_by_cache(options.chunk, options.context, KV_DTYPES)
    table = Table("KV cache", *cases, title="a whole step, us (and over that of the weights' type)")
    ratios = _compare(table, KV_DTYPES, cases)
    return {f"{kind}_kv_over_auto_{case}": ratio for (kind, case), ratio in ratios.items()}, table


def _invariant(bench: StepBench, options: argparse.Namespace) -> tuple[dict[str, float], Table]:
    if bench.info.device != "cpu":
        raise BenchError("--invariant: on a GPU the two modes have products of their own")
    batches = options.batches or BATCHES
    cases = {
        str(batch): bench.decode_by_mode(batch, options.context, shared=False) for batch in batches
    }
    cases |= {
        f"shared_{batch}": bench.decode_by_mode(batch, options.context, shared=True)
        for batch in batches
        if batch > 1
    }
    cases["prefill"] = bench.prefill_by_mode(options.chunk, options.context)
    table = Table("mode", *cases, title="a whole step, us (and over that of the default)")
    ratios = _compare(table, ("default", "invariant"), cases)
    return {f"{kind}_over_default_{case}": ratio for (kind, case), ratio in ratios.items()}, table


def _compare(
    table: Table, kinds: Sequence[_Kind], cases: Mapping[str, Mapping[_Kind, Sequence[float]]]
) -> dict[tuple[_Kind, str], float]:
    """Fill `table` with what steps of each kind take; the ratios to those of the first kind."""
    ratios = {}
    for kind in kinds:
        cells = []
        for case, seconds in cases.items():
            pairs = zip(seconds[kind], seconds[kinds[0]], strict=True)
            ratio = median(one / plain for one, plain in pairs)
            cells.append(f"{1e6 * median(seconds[kind]):,.0f} ({ratio:.3f})")
            if kind != kinds[0]:
                ratios[kind, case] = ratio
        table.add_row(kind, *cells)
    return ratios


def _table(cases: dict[str, dict[str, float]]) -> Table:
    table = Table(title="a step's time, us (and percent of it)")
    table.add_column("part")
    for case in cases:
        table.add_column(case, justify="right")
    for part in PARTS:
        if any(seconds[part] for seconds in cases.values()):
            row = (
                f"{1e6 * seconds[part]:,.0f} ({seconds[part] / seconds['total']:4.0%})"
                for seconds in cases.values()
            )
            table.add_row(part, *row, end_section=part == "other")
    return table
