"""PEFT's `adapter_config.json`, checked: what the weights of an adapter mean.

What an adapter asks for that is not served is refused by its name; whatever only says how it was
trained, or which layers were chosen for that, is passed over.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.adapters.names import NAME, PARAMETERS, ends_of, matching, of_text

MOST_CONFIG_BYTES: Final = 1 << 16
MOST_RANK: Final = 256
_MOST_INVOCATION: Final = 256
"""Tokens."""
_PASSED_OVER: Final = {
    # what it was made from, and for what
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"),
    "task_type",
    # which layers were chosen: the weights tell
    *("exclude_modules", "layers_pattern", "layers_to_transform", "target_modules"),
    # how it was begun and trained
    *("ensure_weight_tying", "eva_config", "lora_dropout", "megatron_core", "qalora_group_size"),
    "runtime_config",
    # what is read below
    *("alora_invocation_tokens", "alpha_pattern", "bias", "lora_alpha", "peft_type", "r"),
    *("init_lora_weights", "rank_pattern", "target_parameters", "use_rslora"),
}
"""Of a configuration; of all else there is to be nothing."""
_BEGINNINGS: Final = (None, False, True, "gaussian", "orthogonal", "eva")
"""Of weights, which leave those of the base as they are."""
_MOST_TOLD: Final = 300


class BadAdapter(ValueError):
    """An adapter that is not served."""

    def __init__(self, field: str, message: str) -> None:
        """`field` is one of the configuration, or the name of a tensor or a file.

        Both may be what a file says, whatever that is: of too much of it only the beginning is
        told, and nothing that is no text.
        """
        self.field, self.message = _told(field), _told(message)
        super().__init__(f"{self.field}: {self.message}")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What acts of a configuration."""

    rank: int
    alpha: float
    is_stabilised: bool
    """Whether the square root of the rank divides what is added (rsLoRA: Kalajdzievski, 2023)."""
    ranks: Mapping[str, int]
    """Of modules whose names end with these."""
    alphas: Mapping[str, float]
    """The same."""
    parameters: tuple[str, ...]
    """Of modules of experts: those whose names end with these are changed, of the same rank for
    each expert."""
    invocation: tuple[int, ...]
    """Tokens behind which it acts, these included, where they stand last in a prompt (activated
    LoRA: Greenewald et al., 2025); empty: everywhere."""

    def rank_of(self, module: str) -> int:
        """Of what is changed in a module."""
        return matching(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What is added there is multiplied by that."""
        rank = self.rank_of(module)
        alpha = matching(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_stabilised else rank)

    def changes(self, parameter: str) -> bool:
        """Whether that, of a module of experts, is changed."""
        return not ends_of(parameter).isdisjoint(self.parameters)


def read_config(data: bytes) -> AdapterConfig:
    """Read `adapter_config.json`. Raises `BadAdapter`."""
    if len(data) > MOST_CONFIG_BYTES:
        raise BadAdapter("adapter_config.json", f"has more than {MOST_CONFIG_BYTES} bytes")
    fields = parsed(data, "adapter_config.json")
    if fields.get("peft_type") != "LORA":
        raise BadAdapter("peft_type", f"{fields.get('peft_type')!r} is not served, but LORA")
    if fields.get("bias", "none") != "none":
        raise BadAdapter("bias", "trained biases are not served")
    if fields.get("init_lora_weights") not in _BEGINNINGS:
        raise BadAdapter("init_lora_weights", "changes the base, too: convert it to plain LoRA")
    for name, value in fields.items():
        # `megatron_core` stands there unless it is used, as `megatron_config` says.
        if name not in _PASSED_OVER and value:
            raise BadAdapter(name, "is not served")
    parameters, invocation = _parameters(fields), _tokens(fields.get("alora_invocation_tokens"))
    if parameters and invocation:
        raise BadAdapter("target_parameters", "is not served behind an invocation")
    return AdapterConfig(
        rank=_whole(fields.get("r"), "r", MOST_RANK),
        alpha=_finite(fields.get("lora_alpha"), "lora_alpha"),
        is_stabilised=_flag(fields.get("use_rslora", False), "use_rslora"),
        ranks=_pattern(fields, "rank_pattern", lambda one, name: _whole(one, name, MOST_RANK)),
        alphas=_pattern(fields, "alpha_pattern", _finite),
        parameters=parameters,
        invocation=invocation,
    )


def _told(text: str) -> str:
    return text[:_MOST_TOLD].encode(errors="backslashreplace").decode()


def parsed(data: bytes, file: str) -> dict[str, Any]:
    """Raises `BadAdapter` for what is no JSON object, or has a name twice."""
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadAdapter(file, f"cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise BadAdapter(file, "is no JSON object")
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _pattern(
    fields: Mapping[str, Any], field: str, read: Callable[[Any, str], Any]
) -> dict[str, Any]:
    found = fields.get(field) or {}
    if not isinstance(found, dict):
        raise BadAdapter(field, "is no JSON object")
    # PEFT writes so itself what it makes of names of single experts.
    ends = {of_text(name.removeprefix(r".*\.")): value for name, value in found.items()}
    if len(ends) < len(found):
        raise BadAdapter(field, "a name stands there twice")
    for name in ends:
        if not NAME.fullmatch(name):
            raise BadAdapter(field, f"{name!r} is no name, or the end of one")
    return {name: read(value, field) for name, value in ends.items()}


def _whole(value: Any, field: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise BadAdapter(field, f"must be 1 ... {most}")
    return value


def _finite(value: Any, field: str) -> float:
    # A whole number may be too large to be one.
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise BadAdapter(field, "must be a finite number")
    return float(value)


def _flag(value: Any, field: str) -> bool:
    if type(value) is not bool:
        raise BadAdapter(field, "must be true or false")
    return value


def _parameters(fields: Mapping[str, Any]) -> tuple[str, ...]:
    found = fields.get("target_parameters") or []
    if not isinstance(found, list):
        raise BadAdapter("target_parameters", "is no list")
    for name in found:
        is_name = isinstance(name, str) and NAME.fullmatch(name) is not None
        if not is_name or name.rpartition(".")[2] not in PARAMETERS:
            raise BadAdapter("target_parameters", f"{name!r} is none of experts")
    return tuple(sorted(set(map(of_text, found))))


def _tokens(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    is_list = isinstance(value, list) and 1 <= len(value) <= _MOST_INVOCATION
    if not is_list or any(type(one) is not int or not 0 <= one < 1 << 31 for one in value):
        raise BadAdapter("alora_invocation_tokens", f"must be 1 ... {_MOST_INVOCATION} token ids")
    return tuple(value)
