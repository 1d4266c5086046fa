"""A folder's plain weights, as the loader of `transformers` reads them: all of them, or none.

It would draw at random what a checkpoint lacks, and only warn of that.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from engine.api import UnsupportedModel
from engine.model.errors import building

COMPUTED: Final = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Buffers of MiniMax's that its configuration says, whether or not a checkpoint has them."""


def read_plain(folder: Path, dtype: torch.dtype, *, sees: bool = False) -> PreTrainedModel:
    """The model of `folder`, in host memory: with what it sees by, if it `sees`.

    Raises `UnsupportedModel` for a checkpoint that lacks a parameter, or has one of another shape
    than its configuration says, and `ModelUnavailable` for a configuration that makes no model.
    """
    model: PreTrainedModel
    told: dict[str, Any]
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    with building(str(folder)):
        model, told = kind.from_pretrained(
            folder, dtype=dtype, ignore_mismatched_sizes=True, output_loading_info=True
        )
    if told["mismatched_keys"]:
        name, found, wanted = min(told["mismatched_keys"])
        raise UnsupportedModel(
            f"{folder}: the checkpoint has {name} of shape {list(found)}, not {list(wanted)}"
            f"{_others(told['mismatched_keys'])}"
        )
    missing = {one for one in told["missing_keys"] if one.rpartition(".")[2] not in COMPUTED}
    if missing:
        raise UnsupportedModel(f"{folder}: the checkpoint has no {min(missing)}{_others(missing)}")
    return model


def _others(names: Collection[Any]) -> str:
    """How many there are beside the one that is named."""
    return f", and {len(names) - 1} more of this kind" if len(names) > 1 else ""
