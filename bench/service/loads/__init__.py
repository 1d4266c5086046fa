"""The loads of `serve` and `peers`, by name: what is asked of a server, and what is told of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from bench.common.workload import CountTokens
from bench.service.loads import chat, cold, mixed, options, steady
from bench.service.loads.rounds import LOAD_FIGURES, Target
from engine.model.weights import resolve_model


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


FIGURES: Final = LOAD_FIGURES | cold.FIGURES | mixed.FIGURES
_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    "shared": steady.DEFAULTS,
    "cold": cold.DEFAULTS,
    "sampled": steady.DEFAULTS,
    "chat": chat.DEFAULTS,
    "mixed": mixed.DEFAULTS,
}
_MAKERS: Final[Mapping[str, Callable[[argparse.Namespace, CountTokens], Load]]] = {
    "shared": steady.Steady.shared,
    "cold": cold.Cold.of,
    "sampled": steady.Steady.sampled,
    "chat": chat.Chat.of,
    "mixed": mixed.Mixed.of,
}


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--load` and the options of all loads."""
    options.add_options(parser, _DEFAULTS)


def settled(given: argparse.Namespace) -> argparse.Namespace:
    """The options with the load's defaults. Raises `BenchError` for one that it does not take."""
    return options.settled(given, _DEFAULTS)


def make_load(given: argparse.Namespace, count: CountTokens) -> Load:
    """The load that settled options describe. Raises `BenchError` if it cannot be."""
    return _MAKERS[given.load](given, count)


def token_counter(model: str) -> CountTokens:
    """Counts tokens as the model's tokenizer does."""
    from transformers import AutoTokenizer

    folder = resolve_model(model, progress=lambda line: print(line, file=sys.stderr))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
