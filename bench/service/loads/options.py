"""The options of the loads: which one takes which, and what they are where they are not given."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.registry import BenchError


def positive(text: str) -> float:
    """A number above 0, of an option."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def count(text: str) -> int:
    """A whole number above 0, of an option."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return value


_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "tenants": {"type": count, "help": "tenants"},
    "requests": {"type": count, "help": "requests (conversations) of each tenant a round"},
    "concurrency": {"type": count, "help": "requests (conversations) under way at once"},
    "system_tokens": {"type": count, "help": "tokens of a system prompt"},
    "output_tokens": {"type": count, "help": "tokens of an answer"},
    "lengths": {"type": count, "nargs": "+", "help": "tokens of the prompts"},
    "turns": {"type": count, "help": "questions of a conversation"},
    "questions": {"type": Path, "metavar": "FILE", "help": "of MT-bench"},
    "trace": {"type": Path, "metavar": "FILE", "help": "azure_conv_2023.csv"},
    "shrink": {"type": positive, "help": "the trace's lengths are divided by this"},
    "rate": {"type": positive, "help": "requests a second that the figures are for"},
    "seconds": {"type": positive, "help": "for which requests come, at each rate that is tried"},
    "halvings": {"type": count, "help": "of what lies between a rate kept and one not kept"},
}


def add_options(
    parser: argparse.ArgumentParser, defaults: Mapping[str, Mapping[str, object]]
) -> None:
    """Declare the load and its options; `defaults` are those of each load: it takes no others."""
    parser.add_argument(
        "--load", choices=tuple(defaults), default=next(iter(defaults)), help="what is asked"
    )
    parser.add_argument("--timeout-seconds", type=positive, default=120.0, help="for one answer")
    for name, given in _OPTIONS.items():
        each = ", ".join(
            f"{load} {_told(taken[name])}" for load, taken in defaults.items() if name in taken
        )
        # What is not given is not there, so that `settled` can tell.
        settings = {**given, "help": f"{given['help']} ({each})", "default": argparse.SUPPRESS}
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)


def settled(
    options: argparse.Namespace, defaults: Mapping[str, Mapping[str, object]]
) -> argparse.Namespace:
    """The options with the load's defaults. Raises `BenchError` for one that it does not take."""
    taken = defaults[options.load]
    for name in _OPTIONS:
        if name in options and name not in taken:
            flag = name.replace("_", "-")
            raise BenchError(f"--{flag} says nothing to --load {options.load}")
    return argparse.Namespace(**{**taken, **vars(options)})


def _told(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
