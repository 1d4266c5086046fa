"""A model folder's tokenizer, without torch where that is possible, and its control tokens."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from engine.model.weights import ModelUnavailable, in_a_line

_PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder, with the chat template of its processor, where that
    has one of its own, which knows pictures. Raises `ModelUnavailable`.
    """
    try:
        tokenizer = _load(folder)
        own = folder / "chat_template.json"
        if own.is_file():
            tokenizer.chat_template = json.loads(own.read_text())["chat_template"]
        return tokenizer
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


def control_tokens(tokenizer: PreTrainedTokenizerBase, markers: Collection[str]) -> dict[str, int]:
    """Those of `markers` that no other tokens can spell in a grammar, with their ids.

    For `llguidance` added tokens are such that are special, or stand in angle brackets.
    """
    return {
        token.content: token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.content in markers
        and (token.special or (token.content[0] == "<" and token.content[-1] == ">"))
    }


def spelled_controls(
    tokenizer: PreTrainedTokenizerBase, text: str, markers: Collection[str]
) -> dict[str, int]:
    """The control tokens that a text spells: those that are not special, and `markers`."""
    spelled = [
        one.content
        for one in tokenizer.added_tokens_decoder.values()
        if one.content in text and (not one.special or one.content in markers)
    ]
    return control_tokens(tokenizer, spelled)


def end_spelled(tokenizer: PreTrainedTokenizerBase, last: int) -> str:
    """What an answer's last token spells, if it ends turns."""
    token = tokenizer.added_tokens_decoder.get(last)
    is_control = token is not None and token.special
    if not is_control and last not in tokenizer.all_special_ids:
        return ""
    return str(tokenizer.decode([last], skip_special_tokens=False))
