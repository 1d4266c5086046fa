"""What paging gains over what it replaced: the figures of the PagedAttention paper, rebuilt.

Kwon et al., SOSP 2023. Every system gets the same requests, the same memory and the same time for
the same step; only what it does with memory differs. Partywall's scheduler and block pool are its
own ones. Time is simulated (`bench.paper.cost_model`) at the paper's scale: OPT-13B on an A100 with
12 GB for KV. One point of (b) is computed for real by the small model, to see whether simulation
can be trusted.

(a) KV memory by category; (b) latency over request rate; (c) memory saved by sharing within a
request; (d) shared prefixes; (e) chats; (f) block sizes; (g) requests batched at once.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Final

from bench.common.traces import AZURE_TRACE
from bench.paper.blocks import BLOCK_SIZES
from bench.paper.cost_model import opt_13b_on_a100
from bench.paper.measure import ALL_FIGURES, PREFIXES, Plan, measure
from bench.paper.report import KEYS, tables
from bench.paper.sharing import WIDTHS
from bench.paper.systems import ORCAS, PARTYWALL
from bench.registry import BenchError, Result
from engine.model.weights import DEFAULT_MODEL, resolve_model

_SUFFIXES: Final = {"": "", "_alpaca": ", Alpaca lengths", "_azure": ", Azure lengths"}


def _figures() -> dict[str, str]:
    found: dict[str, str] = {}
    for suffix, lengths in _SUFFIXES.items():
        for name, key in KEYS.items():
            found[f"utilization_{key}{suffix}"] = (
                f"share of held KV memory with token states, {name}{lengths}"
            )
            found[f"batched_{key}{suffix}"] = f"requests at once, {name}{lengths}"
            found[f"sustained_rate_{key}{suffix}"] = f"requests/s at 0.1 s a token, {name}{lengths}"
            if name != PARTYWALL:
                found[f"rate_over_{key}{suffix}"] = (
                    f"rate that Partywall sustains over that of {name}{lengths}"
                )
        if suffix != "_azure":
            for width in WIDTHS:
                for method, name in (("parallel", "samples"), ("beam", "beams")):
                    found[f"saving_{method}_{width}{suffix}"] = (
                        f"share of blocks saved by sharing, {width} {name} a request{lengths}"
                    )
    for tokens in PREFIXES:
        found[f"shared_prefix_{tokens}"] = (
            f"rate over that of Orca (Oracle), prompts sharing {tokens} tokens"
        )
    for name in ORCAS:
        found[f"chat_over_{KEYS[name]}"] = f"rate over that of {name}, growing chats"
    for lengths in ("sharegpt", "alpaca"):
        for size in BLOCK_SIZES:
            found[f"utilization_block_{size}_{lengths}"] = (
                f"share of held KV memory with token states, blocks of {size}, {lengths}"
            )
    return found | {
        "prompt_blocks_100_requests": "blocks that 100 requests hold of one 2,048-token prompt",
        "sim_vs_real_error": "largest relative error of simulated latency at the real point",
        "sim_agrees_in_order": "1 if the simulation ranks the systems as the real point does",
        "cost_model_error": "mean relative error of the fitted cost of a step",
    }


FIGURES: Final = _figures()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--figures", type=_letters, default=ALL_FIGURES, help="which ones, such as a,b,d"
    )
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="write the pictures there")
    parser.add_argument("--trace", type=Path, default=AZURE_TRACE, help="azure_conv_2023.csv")
    parser.add_argument("--minutes", type=float, default=10.0, help="simulated time of a trace")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="model of the real point, and of beams"
    )
    parser.add_argument("--no-real", action="store_true", help="leave the real point out")
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="simulations at once",
    )


def run(options: argparse.Namespace) -> Result:
    """Simulate, compute the real point, draw."""
    begin = time.monotonic()
    needs_model = set("bc") & set(options.figures)
    plan = Plan(
        figures=options.figures,
        minutes=options.minutes,
        azure_path=options.trace,
        model_path=str(resolve_model(options.model)) if needs_model else None,
        real=not options.no_real,
        processes=options.processes,
    )
    findings = measure(plan)
    if options.pictures is not None:
        try:
            from bench.paper.pictures import draw_all
        except ModuleNotFoundError as error:
            raise BenchError(f"{error.name} draws pictures; install the extra 'bench'") from error
        draw_all(findings, options.pictures, options.figures)
    reported = {
        "trace_found": options.trace.is_file(),
        "cost_of_step": opt_13b_on_a100(),
        "seconds": round(time.monotonic() - begin),
    }
    return Result(findings.figures(), tables(findings, options.figures), reported)


def _letters(text: str) -> str:
    letters = text.replace(",", "")
    if not letters or set(letters) - set(ALL_FIGURES):
        raise argparse.ArgumentTypeError(f"figures are {', '.join(ALL_FIGURES)}")
    return "".join(letter for letter in ALL_FIGURES if letter in letters)
