"""Where the time of an engine step goes, part by part: decoding and prefilling.

Every second step is left alone (`plain`); those between are taken apart, by replacing what the
engine calls with calls that take the time. A part's time is its own, without that of the parts that
it calls or of looking at them, so that parts add up to the `total`. It is close to `plain` where
looking disturbs nothing; layers that the compiled library runs in one call cost more one by one.
Figures are means over the middle half of the steps. On a GPU each part is waited for, which a step
that is left alone does not do. What the blocks hold does not matter to the time, so prompts in
front of measured decode steps are not computed.
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
FIGURES: Final = {
    f"us_{case}_{part}": f"{what}: {meaning}, us"
    for case, what in [
        *((f"decode_{batch}", f"decode step, batch {batch}") for batch in BATCHES),
        ("prefill", "step of one prefill chunk"),
    ]
    for part, meaning in PARTS.items()
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model that is run")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", help="type of weights and KV cache")
    parser.add_argument("--quantize", default="none", choices=["none", "int8"])
    parser.add_argument("--threads", type=int, help="CPU threads of the model; one a core")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--context", type=int, default=512, help="tokens before a decode step")
    parser.add_argument("--chunk", type=int, default=128, help="tokens of a prefill chunk")
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind, and as many")


def run(options: argparse.Namespace) -> Result:
    """Measure every case on one model."""
    foreign = warn_if_busy()
    # As in the engine's own process; before anything imports torch.
    os.environ.update(thread_environment(options.threads))
    from bench.engine.step_cases import StepBench

    config = EngineConfig(
        model_path=str(resolve_model(options.model)),
        device=options.device,
        dtype=options.dtype,
        quantize=options.quantize,
        threads=options.threads,
        prefix_cache=False,
    )
    with StepBench(config, options.steps, PARTS) as bench:
        cases = {
            f"decode_{batch}": bench.decode(batch, options.context) for batch in options.batches
        }
        cases["prefill"] = bench.prefill(options.chunk)
    reported = parameters(
        options,
        foreign_load_percent=foreign,
        compute_dtype=bench.info.dtype,
        compute_device=bench.info.device,
        fused=bench.is_fused,
    )
    figures = {
        f"us_{case}_{part}": 1e6 * seconds[part]
        for case, seconds in cases.items()
        for part in PARTS
    }
    return Result(reported, figures, [_table(cases)])


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
