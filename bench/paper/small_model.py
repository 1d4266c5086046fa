"""The small model, for what is computed for real: on one thread, and without a word."""

from __future__ import annotations

import torch
from transformers.utils import logging as transformers_logging

from engine.config import EngineConfig
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model


def load_small_model(path: str, block_size: int) -> PagedModel:
    """The weights in the folder `path`; the caller allocates the KV memory."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    return load_model(EngineConfig(model_path=path, block_size=block_size))
