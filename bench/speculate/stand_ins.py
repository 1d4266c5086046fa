"""Draft models for benchmarks where there is no real one: the model itself, and one that knows
nothing. Between them lies what a trained one does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from engine.model.weights import resolve_model

ITSELF: Final = "itself"
STRANGER: Final = "stranger"
_LAYERS: Final = 2


def draft_folder(name: str, model: Path, scratch: Path) -> Path:
    """The folder of the draft model `name` for `model`; what is made for it lies in `scratch`."""
    if name == ITSELF:
        return model
    if name == STRANGER:
        _save_stranger(model, scratch)
        return scratch
    return resolve_model(name)


def _save_stranger(model: Path, folder: Path) -> None:
    """Two layers like those of `model`, and its vocabulary, with random weights."""
    config = AutoConfig.from_pretrained(model)
    config.num_hidden_layers = _LAYERS
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:_LAYERS]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
