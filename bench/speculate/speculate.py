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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.common.figures import numbers_table
from bench.common.options import add_model, engine_config, set_threads
from bench.common.traces import DEFAULT_QUESTIONS, conversations
from bench.registry import Result
from engine.model.weights import resolve_model

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
    add_model(parser, "dtype", "quantize", "threads")
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
    set_threads(options)
    from bench.speculate.cases import SpeculateBench, draft_folder

    guesses = {"speculation": "lookup"}
    with TemporaryDirectory() as scratch:
        if options.draft_model is not None:
            model = resolve_model(options.model)
            draft = draft_folder(options.draft_model, model, Path(scratch))
            guesses = {"speculation": "draft", "draft_model_path": str(draft)}
        bench = SpeculateBench(engine_config(options, **guesses), options.tokens)
    found = bench.measure(
        options.loads, conversations(options.questions), options.chats, options.rounds
    )
    figures = {f"speedup_{load}": one.ratio for load, one in found.items()}
    figures["speedup_min"] = min(figures.values())
    for load in ("edit", "chat"):
        if load in found:
            figures[f"accepted_share_{load}"] = found[load].accepted_share
    figures["calibration_seconds"] = bench.calibration_seconds
    title = "tokens a second, speculation off and on; medians of rounds"
    columns = ("off", "on", "speedup", "came true", "tokens a row of a step")
    table = numbers_table(title, "load", *columns)
    for load, one in found.items():
        table.add_row(
            LOADS[load],
            f"{one.plain:,.0f}",
            f"{one.rate:,.0f}",
            f"{one.ratio:.2f}",
            f"{one.accepted_share:.0%}",
            f"{one.tokens_per_step:.2f}",
        )
    return Result(figures, [table], {"compute_dtype": bench.dtype})
