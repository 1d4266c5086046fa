"""The loads of `serve` and `peers`, by name: what is asked of a server, and what is told of it.

Each takes some of the options, and has its own defaults for these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from bench.common.workload import CountTokens
from bench.registry import BenchError
from bench.service.loads import closed, mixed
from bench.service.loads.rounds import LOAD_FIGURES, Target
from engine.model.weights import resolve_model


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


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--load` and the options of all loads."""
    parser.add_argument("--load", choices=tuple(_LOADS), default="shared", help="what is asked")
    parser.add_argument("--timeout-seconds", type=positive, default=120.0, help="for one answer")
    for name, given in _OPTIONS.items():
        each = ", ".join(
            f"{load} {_told(taken[name])}" for load, (taken, _) in _LOADS.items() if name in taken
        )
        # What is not given is not there, so that `settle` can tell.
        settings = {**given, "help": f"{given['help']} ({each})", "default": argparse.SUPPRESS}
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)


def settle(options: argparse.Namespace) -> argparse.Namespace:
    """Give the options the load's defaults. Raises `BenchError` for one that it does not take."""
    taken, _ = _LOADS[options.load]
    for name in _OPTIONS:
        if name in options and name not in taken:
            flag = name.replace("_", "-")
            raise BenchError(f"--{flag} says nothing to --load {options.load}")
    vars(options).update({**taken, **vars(options)})
    return options


def _told(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


class Load(Protocol):
    """What every server is asked."""

    @property
    def systems(self) -> Sequence[str]:
        """The system prompt of each tenant, empty where it has none."""
        ...

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """Load a server once; returns some of `FIGURES`.

        The same label means the same requests, and no other label any of them. Raises `BenchError`
        if nothing is answered.
        """
        ...


Maker = Callable[[argparse.Namespace, CountTokens], Load]
FIGURES: Final = LOAD_FIGURES | closed.COLD_FIGURES | mixed.FIGURES
_LOADS: Final[Mapping[str, tuple[Mapping[str, object], Maker]]] = {
    "shared": (closed.STEADY_DEFAULTS, closed.Steady.shared),
    "cold": (closed.COLD_DEFAULTS, closed.Cold.of),
    "sampled": (closed.STEADY_DEFAULTS, closed.Steady.sampled),
    "chat": (closed.CHAT_DEFAULTS, closed.Chat.of),
    "mixed": (mixed.DEFAULTS, mixed.Mixed.of),
}
"""By name: the options that it takes with their defaults, and what makes one of them."""


def make_load(given: argparse.Namespace, count: CountTokens) -> Load:
    """The load that settled options describe. Raises `BenchError` if it cannot be."""
    return _LOADS[given.load][1](given, count)


def token_counter(model: str) -> CountTokens:
    """Counts tokens as the model's tokenizer does."""
    from transformers import AutoTokenizer

    folder = resolve_model(model, progress=lambda line: print(line, file=sys.stderr))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
