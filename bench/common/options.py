"""The options that several benches have, and what a service and an engine are told of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any, Final

from engine.config import EngineConfig
from engine.model.weights import DEFAULT_MODEL, resolve_model
from engine.system.threads import thread_environment

_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "model": {"default": DEFAULT_MODEL, "help": "model that is run; whose tokenizer is used"},
    "device": {"default": "auto", "choices": ["auto", "cpu", "cuda"]},
    "dtype": {"default": "auto", "help": "type of weights and KV cache"},
    "quantize": {"default": "auto", "choices": ["auto", "none", "int8", "int4"]},
    "threads": {"type": int, "help": "CPU threads of the model; one a core"},
    "kv_memory": {"default": "1GiB", "help": "memory of the KV cache"},
}
_OF_ENGINES: Final = ("device", "dtype", "quantize", "threads")
_OF_SERVICES: Final = ("model", "dtype", "quantize", "kv_memory")


def add_model(parser: argparse.ArgumentParser, *others: str) -> None:
    """Declare `--model`, and others of the options above."""
    for name in ("model", *others):
        parser.add_argument(f"--{name.replace('_', '-')}", **_OPTIONS[name])


def service_flags(options: argparse.Namespace) -> list[str]:
    """What `partywall serve` is told of them."""
    given = [(name, getattr(options, name)) for name in _OF_SERVICES if name in options]
    return [word for name, value in given for word in (f"--{name.replace('_', '-')}", value)]


def engine_config(options: argparse.Namespace, **others: Any) -> EngineConfig:
    """What an engine is told of them, and `others`."""
    given = {name: getattr(options, name) for name in _OF_ENGINES if name in options}
    return EngineConfig(model_path=str(resolve_model(options.model)), **given, **others)


def set_threads(options: argparse.Namespace) -> None:
    """As in the engine's own process; before anything imports torch."""
    os.environ.update(thread_environment(options.threads))
