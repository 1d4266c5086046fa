"""What people write stays text: control tokens that stand in it are spelled, never recognised.

A chat template puts control tokens (`<|im_start|>`) around what people have written, and tokenizers
know them wherever they stand: whoever writes one would open a turn of any role. So a mark breaks
each one that a text spells, before the template sees it; it survives whatever templates do with
texts (trim, slice, merge), and is a token of its own, which the ids leave out again. A text without
control tokens has no mark, and the ids it has always had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from tokenizers import AddedToken, Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from app.wire.functions import PLACE, REPLACEMENT, Message

MARK: Final = "\ufdd0"
"""A noncharacter, which no text is meant to hold (Unicode, section 23.7)."""
_PIECE_CHARACTERS: Final = 65_536
_USUAL_CHARACTERS: Final = 6
"""A token of ordinary text has fewer: such a text is tokenized without being counted first."""


Mark = Callable[[str, str], str]
"""Marks a text that somebody in a role has written, see `PlainText.mark`."""


class TooManyTokens(Exception):
    """A text has more tokens than it may have; the argument is how many, at least."""


class PlainText:
    """Marks texts for templates, and tokenizes what the templates made of them.

    The tokenizer gets one more token, behind all that a model knows.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, placeholders: frozenset[str] = frozenset()
    ) -> None:
        """No text whatever holds one of the `placeholders`."""
        mark = AddedToken(MARK, normalized=False, special=True)
        tokenizer.add_tokens([mark], special_tokens=True)
        self._tokenizer = tokenizer
        self.longest_token = max(map(len, tokenizer.get_vocab()))
        """Characters of the longest token, at most: in some alphabets it is written with more."""
        self._mark_id = tokenizer.convert_tokens_to_ids(MARK)
        self.num_known = int(self._mark_id)
        """Tokens that a text may have: all before the mark."""
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
        self._special |= _splittable(placeholders)
        # Some tokens that templates speak with are not declared special: `<tool_call>`.
        self._spoken = _splittable(token.content for token in added if token.content in template)

    def mark(self, text: str, role: str) -> str:
        """`text` as a template may have it.

        An assistant's may hold what the model writes and templates look for, such as `</think>`.
        """
        text = self._undisguised(text.replace(MARK, REPLACEMENT))
        controls = self._special if role == "assistant" else self._special | self._spoken
        return _broken(text, controls)

    def encode_raw(self, text: str, most: int) -> list[int]:
        """The ids of a text that is a whole prompt: control tokens that it spells are such.

        Raises `TooManyTokens`.
        """
        return self.encode(text.replace(MARK, REPLACEMENT), most)

    @cached_property
    def leading_ids(self) -> list[int]:
        """What the tokenizer begins every text with, such as a token for the beginning."""
        bare = list(self._tokenizer("a", add_special_tokens=False)["input_ids"])
        whole = list(self._tokenizer("a")["input_ids"])
        return whole[: -len(bare)] if whole[-len(bare) :] == bare else []

    def encode(self, rendered: str, most: int) -> list[int]:
        """The token ids of what a template made of marked texts. Raises `TooManyTokens`.

        Memory and time for a text that has more than `most` do not grow with its length.
        """
        if self._backend is None:
            ids = list(self._tokenizer(rendered, add_special_tokens=False)["input_ids"])
        else:
            if len(rendered) > max(_PIECE_CHARACTERS, _USUAL_CHARACTERS * most):
                self._count_in_pieces(rendered, most)
            encoding = _encoding(self._backend, rendered)
            _check(len(encoding) - rendered.count(MARK), most)
            ids = encoding.ids
        if MARK in rendered:
            ids = [one for one in ids if one != self._mark_id]
        _check(len(ids), most)
        return ids

    def _count_in_pieces(self, rendered: str, most: int) -> None:
        """Raise `TooManyTokens` for a text with too many, even where each cut makes some more."""
        assert self._backend is not None
        at_least = 0
        for start in range(0, len(rendered), _PIECE_CHARACTERS):
            piece = rendered[start : start + _PIECE_CHARACTERS]
            at_least += len(_encoding(self._backend, piece)) - piece.count(MARK)
            at_least -= self.longest_token
            _check(at_least, most)

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


def marked(message: Message, mark: Mark) -> dict[str, Any]:
    """What a message says as a template takes it."""
    role, content = message["role"], message["content"]
    if "pictures" not in message:
        content = content.replace(PLACE, REPLACEMENT)
    out: dict[str, Any] = {"role": role, "content": mark(content, role)}
    if "name" in message:
        out["name"] = mark(message["name"], "user")
    if "reasoning" in message:
        out["reasoning_content"] = reasoning = mark(message["reasoning"], role)
        if not (message["content"] and message.get("calls")):  # gpt-oss refuses all three
            out["thinking"] = reasoning
    return out


def marked_json(value: Any, mark: Mark) -> Any:
    """A JSON value with every text in it marked, names of members among them."""
    if isinstance(value, str):
        return mark(value, "tool")
    if isinstance(value, dict):
        return {mark(key, "tool"): marked_json(one, mark) for key, one in value.items()}
    return [marked_json(one, mark) for one in value] if isinstance(value, list) else value


def _broken(text: str, controls: frozenset[str]) -> str:
    """`text` with a mark inside every one of `controls` that stands in it.

    In pieces: a call that replaces lets no other thread run. The end of each piece is looked at
    again with the next one, since a control may lie astride.
    """
    astride = max(map(len, controls), default=1) - 1
    done: list[str] = []
    rest = ""
    for start in range(0, len(text), _PIECE_CHARACTERS):
        piece = _broken_piece(rest + text[start : start + _PIECE_CHARACTERS], controls)
        border = max(0, len(piece) - astride)
        done.append(piece[:border])
        rest = piece[border:]
    return "".join([*done, rest])


def _broken_piece(piece: str, controls: frozenset[str]) -> str:
    for control in controls:
        while control in piece:  # again: one that overlaps itself is broken at every other place
            piece = piece.replace(control, f"{control[0]}{MARK}{control[1:]}")
    return piece


def _encoding(backend: Tokenizer, text: str) -> Encoding:
    """Of the ways to call a tokenizer, one that lets other threads run and keeps no offsets."""
    return backend.encode_batch_fast([text], add_special_tokens=False)[0]


def _check(tokens: int, most: int) -> None:
    if tokens > most:
        raise TooManyTokens(tokens)


def _splittable(contents: Iterable[str]) -> frozenset[str]:
    """What a mark can break: not the added tokens that are one character, or white space."""
    return frozenset(one for one in contents if len(one) > 1 and not one.isspace())
