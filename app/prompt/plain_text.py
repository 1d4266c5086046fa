"""What people write stays text: control tokens that stand in it are spelled, never recognised.

A chat template puts control tokens (`<|im_start|>`) around what people have written, and tokenizers
know them wherever they stand: whoever writes one would open a turn of any role. So a mark breaks
each one that a text spells, before the template sees it; it survives whatever templates do with
texts (trim, slice, merge), and is a token of its own, which the ids leave out again. A text without
control tokens has no mark, and the ids it has always had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerBase

MARK: Final = "\ufdd0"
"""A noncharacter, which no text is meant to hold (Unicode, section 23.7)."""
_REPLACEMENT: Final = "\ufffd"


class PlainText:
    """Marks texts for templates, and tokenizes what the templates made of them.

    The tokenizer gets one more token, behind all that a model knows.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        mark = AddedToken(MARK, normalized=False, special=True)
        tokenizer.add_tokens([mark], special_tokens=True)
        self._tokenizer = tokenizer
        self._mark_id = tokenizer.convert_tokens_to_ids(MARK)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._backend = backend if isinstance(backend, Tokenizer) else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        added = [
            token for token in tokenizer.added_tokens_decoder.values() if token.content != MARK
        ]
        self._disguised = self._disguisable(added)
        template = str(tokenizer.chat_template or "")
        self._special = _splittable(token.content for token in added if token.special)
        # Some tokens that templates speak with are not declared special: `<tool_call>`.
        self._spoken = _splittable(token.content for token in added if token.content in template)

    def mark(self, text: str, role: str) -> str:
        """`text` as a template may have it.

        An assistant's may hold what the model writes and templates look for, such as `</think>`.
        """
        text = self._undisguised(text.replace(MARK, _REPLACEMENT))
        controls = self._special if role == "assistant" else self._special | self._spoken
        for control in controls:
            while control in text:
                text = text.replace(control, f"{control[0]}{MARK}{control[1:]}")
        return text

    def encode(self, rendered: str) -> list[int]:
        """The token ids of what a template made of marked texts."""
        if self._backend is None:
            ids = list(self._tokenizer(rendered, add_special_tokens=False)["input_ids"])
        else:
            # Of the ways to call it, this one lets other threads run, and keeps no offsets.
            ids = self._backend.encode_batch_fast([rendered], add_special_tokens=False)[0].ids
        return [one for one in ids if one != self._mark_id] if MARK in rendered else ids

    def _disguisable(self, added: Sequence[AddedToken]) -> frozenset[str]:
        """The tokens that are looked for in normalized text, where other characters spell them."""
        if self._backend is None or self._backend.normalizer is None:
            return frozenset()
        return _splittable(token.content for token in added if token.normalized)

    def _undisguised(self, text: str) -> str:
        """`text` normalized, as it will be anyway, where that brings a control token to light."""
        if not self._disguised:
            return text
        assert self._backend is not None
        assert self._backend.normalizer is not None
        normal = str(self._backend.normalizer.normalize_str(text))
        return normal if any(one in normal and one not in text for one in self._disguised) else text


def _splittable(contents: Iterable[str]) -> frozenset[str]:
    """What a mark can break: not the added tokens that are one character, or white space."""
    return frozenset(one for one in contents if len(one) > 1 and not one.isspace())
