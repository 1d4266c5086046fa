"""What several tokens a step add to tokens a second: editing, quoting, chats, batches, chance.

One model, and two engines over its weights, each with blocks of its own: with and without
speculation. They take turns prompt by prompt, or batch by batch, so that whatever else the machine
does befalls both. Prompts are in the cache, so that the time is that of decoding; no two requests
share a namespace, so that nothing is known of earlier answers.

Editing and quoting prompts, second turns of MT-bench (`--questions FILE`; synthetic ones where it
is missing) behind answers of the model itself, chats behind shared system prompts, half of a batch
editing, and loads on which there is little to gain: batches of 8 and 32, and tokens drawn at a high
temperature.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.table import Table

from bench.common.machine import warn_if_busy
from bench.common.mt_bench import DEFAULT_QUESTIONS, conversations
from bench.registry import Result, parameters
from engine.config import EngineConfig
from engine.model.weights import DEFAULT_MODEL, resolve_model
from engine.system.threads import thread_environment

LOADS: Final = {
    "edit": "texts to correct, one at a time",
    "quote": "texts to repeat, one at a time",
    "chat": "second turns of chats, one at a time",
    "chat_sampled": "the same at temperature 1, top-p 0.95",
    "random": "the same at temperature 3: tokens without order",
    "shared_8": "eight chats at once, behind four system prompts of 512 tokens",
    "mixed_8": "eight at once, four texts to correct and four second turns",
    "batch_8": "eight second turns at once",
    "batch_32": "32 at once",
    "batch_8_sampled": "eight at once at temperature 1, top-p 0.95",
    "batch_32_sampled": "32 at once so",
}
FIGURES: Final = {
    **{f"speedup_{load}": f"tokens/s with over without: {what}" for load, what in LOADS.items()},
    "speedup_min": "the least of these",
    "accepted_share_edit": "guesses that came true, of all: editing",
    "accepted_share_chat": "the same: chats",
    "calibration_seconds": "to measure what rows cost, at start",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model that is run")
    parser.add_argument("--dtype", default="auto", help="type of weights and KV cache")
    parser.add_argument("--quantize", default="auto", choices=["auto", "none", "int8", "int4"])
    parser.add_argument("--threads", type=int, help="CPU threads of the model; one a core")
    parser.add_argument(
        "--draft-model",
        help="model that guesses where a look-up finds nothing: name or folder, `itself` for the "
        "model that is run, or `stranger` for one of two layers that knows nothing",
    )
    parser.add_argument("--questions", type=Path, default=DEFAULT_QUESTIONS)
    parser.add_argument("--chats", type=int, default=8, help="second turns, one at a time")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=6, help="of all loads")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))


def run(options: argparse.Namespace) -> Result:
    """Measure each load with and without, in turns."""
    foreign = warn_if_busy()
    # As in the engine's own process; before anything imports torch.
    os.environ.update(thread_environment(options.threads))
    from bench.speculate.cases import SpeculateBench
    from bench.speculate.stand_ins import draft_folder

    folder = resolve_model(options.model)
    draft: Path | None = None
    with TemporaryDirectory() as scratch:
        if options.draft_model is not None:
            draft = draft_folder(options.draft_model, folder, Path(scratch))
        bench = SpeculateBench(_config(options, folder, draft), options.tokens)
    found = bench.measure(
        options.loads, conversations(options.questions), options.chats, options.rounds
    )
    figures = {f"speedup_{load}": one.speedup for load, one in found.items()}
    figures["speedup_min"] = min(figures.values())
    for load in ("edit", "chat"):
        if load in found:
            figures[f"accepted_share_{load}"] = found[load].accepted_share
    figures["calibration_seconds"] = bench.calibration_seconds
    table = Table(title="tokens a second, speculation off and on; medians of rounds")
    for column in ("load", "off", "on", "speedup", "came true", "tokens a row of a step"):
        table.add_column(column, justify="left" if column == "load" else "right")
    for load, one in found.items():
        table.add_row(
            LOADS[load],
            f"{one.off:,.0f}",
            f"{one.on:,.0f}",
            f"{one.speedup:.2f}",
            f"{one.accepted_share:.0%}",
            f"{one.tokens_per_step:.2f}",
        )
    reported = parameters(options, foreign_load_percent=foreign, compute_dtype=bench.dtype)
    return Result(reported, figures, [table])


def _config(options: argparse.Namespace, folder: Path, draft: Path | None) -> EngineConfig:
    """Of the engine that guesses."""
    return EngineConfig(
        model_path=str(folder),
        draft_model_path=None if draft is None else str(draft),
        speculation="lookup" if draft is None else "draft",
        dtype=options.dtype,
        quantize=options.quantize,
        threads=options.threads,
    )
