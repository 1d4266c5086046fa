"""Loading a model folder's tokenizer without loading torch, where that is possible."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from engine.model.weights import ModelUnavailable, in_a_line

_PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder. Raises `ModelUnavailable`."""
    try:
        return _load(folder)
    except Exception as error:  # the library behind it raises nothing more special
        raise ModelUnavailable(
            f"{folder} has no tokenizer that can be read: {in_a_line(error)}; fetch its files "
            "again, or choose another model"
        ) from error


def _load(folder: Path) -> PreTrainedTokenizerBase:
    """As `load_tokenizer`, in the words of whatever fails.

    The service process computes nothing; `AutoTokenizer` would import torch into it. So a
    tokenizer that is just its `tokenizer.json` is loaded by the class that reads it.
    """
    config = folder / "tokenizer_config.json"
    declared = json.loads(config.read_text()) if config.is_file() else {}
    if declared.get("tokenizer_class") in _PLAIN_CLASSES and (folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
