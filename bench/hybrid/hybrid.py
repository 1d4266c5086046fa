"""What a prefix cache of hybrid models finds, by where states are kept and how long.

A recurrent layer's state cannot be cut back to a prefix, so a hit needs a copy of it as it was at
exactly that length, and a copy is as large as the keys of thousands of tokens. *policy* simulates
who keeps which copies, with the bytes and operations of two models and without running them: three
traces, pools from a sixteenth to all of what they touch, the rules of engines and of the
literature, Partywall's, and one that knows the future. *served* runs a random model of
Qwen3.5-0.8B's shape, with the default model's vocabulary: turns of chats beside the same new tokens
without a history, and beside a dense model's hits; and cold prompts and streams over HTTP beside
the model's own modules and the `--peers`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from bench.common.traces import DEFAULT_QUESTIONS, MOONCAKE_TRACE
from bench.hybrid import report
from bench.hybrid.comparison import compare
from bench.hybrid.served import served
from bench.hybrid.shapes import QWEN, SHAPES
from bench.hybrid.traces.agents import agents
from bench.hybrid.traces.chats import chats
from bench.hybrid.traces.mooncake import mooncake
from bench.hybrid.traces.requests import grow
from bench.registry import Result
from bench.service.loads import count, positive

_POLICY: Final = "policy"
_SERVED: Final = "served"
FIGURES = {**report.FIGURES, **served.FIGURES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parts = (_POLICY, _SERVED)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="what to measure")
    parser.add_argument(
        "--trace",
        type=Path,
        default=MOONCAKE_TRACE,
        help="prompts in Mooncake's format; where there is no such file, synthetic ones",
    )
    parser.add_argument("--requests", type=int, default=6_000, help="of that trace, the first ones")
    parser.add_argument(
        "--questions",
        type=Path,
        default=DEFAULT_QUESTIONS,
        help="MT-bench's; where there is no such file, synthetic ones",
    )
    parser.add_argument("--conversations", type=int, default=1_000, help="of the chats")
    parser.add_argument("--sessions", type=int, default=100, help="of the agents")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw hybrid-policy.png there")
    parser.add_argument("--weights", choices=("bf16", "int8"), default="bf16", help="served ones")
    parser.add_argument("--rounds", type=count, default=2, help="served: rounds, of all servers")
    parser.add_argument(
        "--peers", type=Path, metavar="FILE", help="with {folder}, {port}, {weights}"
    )
    parser.add_argument("--timeout-seconds", type=positive, default=600.0, help="for one answer")


def run(options: argparse.Namespace) -> Result:
    """Measure the parts asked for."""
    results = []
    if _POLICY in options.parts:
        results.append(_policy(options))
    if _SERVED in options.parts:
        given = options.weights, options.rounds, options.peers, options.timeout_seconds
        results.append(served.measured(*given))
    figures = {name: value for one in results for name, value in one.figures.items()}
    return Result(figures, [table for one in results for table in one.tables])


def _policy(options: argparse.Namespace) -> Result:
    """Replay all traces with both models' shapes."""
    traces = [
        mooncake(options.trace, options.requests, options.seed),
        chats(options.questions, options.conversations, options.seed, reasoning=False),
        chats(options.questions, options.conversations, options.seed, reasoning=True),
        agents(options.sessions, options.seed),
    ]
    found = [compare(tree, shape) for tree in map(grow, traces) for shape in SHAPES]
    if options.pictures is not None:
        drawn = [one for one in found if one.shape is QWEN]
        report.draw(options.pictures / "hybrid-policy.png", drawn)
    return Result(report.figures(found), report.tables(found))
