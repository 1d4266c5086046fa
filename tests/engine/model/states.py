"""Tiny models whose layers keep a state, and engines with memory for so many of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from transformers import PreTrainedModel

from engine.config import EngineConfig
from engine.model.load import load_model
from tests.engine.model.test_model import FAMILIES, save_model
from tests.engine.model.tiny_families import tiny_config, tiny_model


def saved(family: str, folder: Path) -> PreTrainedModel:
    """A random one, also in the folder."""
    if family in FAMILIES:
        return save_model(family, folder)
    model = tiny_model(tiny_config(family, vocab_size=1000))
    model.save_pretrained(folder)
    return model


def config_of(folder: Path, num_blocks: int, num_states: int, **fields: Any) -> EngineConfig:
    """Of an engine whose memory holds so many blocks of keys, and states beside them."""
    config = EngineConfig(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        block_size=8,
        step_token_budget=48,
        max_running_requests=8,
        threads=1,
    )
    model = load_model(config, by_kinds=True)
    room = (num_blocks + num_states * model.pages.state_pages) * model.page_bytes
    return msgspec.structs.replace(config, kv_memory_bytes=room, **fields)
