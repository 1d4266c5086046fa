"""What formats cost: masks, the first one, and tokens a second with schemas over those without.

One engine decodes batches of which each sequence is held to a schema of its own, and batches of the
same prompts that are free, in turns; all write as many tokens, in arrays too long to end before.
A ratio is the median over the rounds. A mask's time is what the engine's loop spends to find which
tokens a row may draw. A first mask's is from a request's arrival to where it may be planned, for a
schema that nobody has sent before.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from rich.table import Table

from bench.common.machine import warn_if_busy
from bench.registry import Result, parameters
from engine.config import EngineConfig
from engine.model.weights import DEFAULT_MODEL, resolve_model
from engine.run.threads import thread_environment

FIGURES: Final = {
    "mask_us_p50": "to find what a row may draw, us: median",
    "mask_us_p99": "the same: 99th percentile",
    "first_mask_ms": "from a request's arrival to its compiled grammar and first mask, ms: median",
    "tokens_per_s_ratio": "tokens/s with schemas over without, at the first of the batch sizes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model that is run")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", help="type of weights and KV cache")
    parser.add_argument("--quantize", default="auto", choices=["auto", "none", "int8", "int4"])
    parser.add_argument("--threads", type=int, help="CPU threads of the model; one a core")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 1, 32], help="sequences")
    parser.add_argument("--tokens", type=int, default=96, help="that each sequence writes")
    parser.add_argument("--rounds", type=int, default=5, help="of all batches, both ways")


def run(options: argparse.Namespace) -> Result:
    """Measure batches with and without schemas, in turns."""
    foreign = warn_if_busy()
    # As in the engine's own process; before anything imports torch.
    os.environ.update(thread_environment(options.threads))
    from bench.engine.structured_cases import StructuredBench

    bench = StructuredBench(
        EngineConfig(
            model_path=str(resolve_model(options.model)),
            device=options.device,
            dtype=options.dtype,
            quantize=options.quantize,
            threads=options.threads,
        ),
        options.tokens,
    )
    found = bench.measure(options.batches, options.rounds)
    table = Table(title="tokens a second, free and held to schemas; medians of rounds")
    for column in ("batch", "free", "held", "held / free"):
        table.add_column(column, justify="right")
    for batch, one in found.items():
        table.add_row(str(batch), f"{one.free:,.0f}", f"{one.held:,.0f}", f"{one.ratio:.3f}")
    figures = {
        "mask_us_p50": bench.mask_us(50),
        "mask_us_p99": bench.mask_us(99),
        "first_mask_ms": bench.first_mask_ms,
        "tokens_per_s_ratio": found[options.batches[0]].ratio,
    }
    costs = Table(title="what a schema takes")
    for column in ("first mask, ms", "mask, us: median", "99th percentile"):
        costs.add_column(column, justify="right")
    costs.add_row(
        f"{figures['first_mask_ms']:.1f}",
        f"{figures['mask_us_p50']:.0f}",
        f"{figures['mask_us_p99']:.0f}",
    )
    reported = parameters(options, foreign_load_percent=foreign, compute_dtype=bench.dtype)
    return Result(reported, figures, [table, costs])
