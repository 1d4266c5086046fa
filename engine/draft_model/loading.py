"""A small model beside the one that answers, to guess what that one will say."""

from __future__ import annotations

from pathlib import Path

import msgspec
from transformers import AutoTokenizer

from engine.api import EngineError, UnsupportedModel
from engine.config import EngineConfig
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def load_draft(config: EngineConfig, model: PagedModel) -> PagedModel | None:
    """The draft model that `config` names, served as `model` is, which it guesses for.

    Raises `EngineError`, naming `draft_model`, for one that cannot be served or has another
    vocabulary.
    """
    path = config.draft_model_path
    if path is None:
        return None
    if not (Path(path) / "config.json").is_file():
        raise EngineError(f"draft_model: {path} is no folder with a model's config.json")
    own = msgspec.structs.replace(
        config,
        model_path=path,
        draft_model_path=None,
        speculation="off",
        batch_invariant=False,
        tensor_parallel=1,
    )
    try:
        draft = load_model(own)
        if draft.pages.state_pages:
            raise UnsupportedModel(f"{path}: layers that keep a state cannot guess")
        sizes = model.weights.config.vocab_size, draft.weights.config.vocab_size
        _require_one_vocabulary(Path(config.model_path), Path(path), sizes)
    except EngineError as error:
        raise type(error)(f"draft_model: {error}") from None
    except (OSError, ValueError) as error:  # what transformers does not find or know
        raise UnsupportedModel(f"draft_model: {path}: {error}") from error
    return draft


def _require_one_vocabulary(folder: Path, draft: Path, sizes: tuple[int, int]) -> None:
    """Raise unless both models mean the same tokens by the same numbers.

    Sizes alone tell little: matrices are padded, differently for models of one family. They count
    where a folder has no tokenizer.
    """
    tokens, drafted = _tokens(folder), _tokens(draft)
    if tokens is None or drafted is None:
        if sizes[0] != sizes[1]:
            raise EngineError(f"{draft} has {sizes[1]} tokens, and the model {sizes[0]}")
        return
    for token_id in sorted(tokens.keys() & drafted.keys()):
        own, other = tokens[token_id], drafted[token_id]
        if own != other:
            raise EngineError(
                f"{draft} has another vocabulary: its token {token_id} is {other!r}, and the "
                f"model's {own!r}"
            )


def _tokens(folder: Path) -> dict[int, str] | None:
    """The tokens of a folder's tokenizer, by their numbers; None where it has no tokenizer."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    return {token_id: token for token, token_id in vocabulary.items()}
