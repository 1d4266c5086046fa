"""How a model's chat template writes pictures, and where they lie in the tokens of a prompt.

A template writes a placeholder, one token, for each part of a message that is a picture. In its
place come the tokens that the picture has, one picture after the other. Most have the token that
stands for pictures there; Gemma 3's writes the one that begins them, which its processor sets apart
by empty lines. Nobody's text can hold either (`app.prompt.plain_text`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from app.wire.errors import ApiError, invalid_request
from app.wire.functions import PLACE, Detail, Picture

_TRIED: Final = "tried words"
_APART: Final = "\n\n"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A picture in the `count` tokens from `start` on of a prompt.

    `digest` is of what the model is given of it. `source` is what its URL is found by among what
    is kept under its `origin`, see `Picture`.
    """

    digest: bytes
    start: int
    count: int
    detail: Detail
    source: bytes
    origin: str

    @property
    def end(self) -> int:
        """Where the prompt goes on behind it."""
        return self.start + self.count


class PictureStyle:
    """One model's; one that sees nothing has no `token_id`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, token_id: int | None) -> None:
        self._tokenizer = tokenizer
        self.token_id = token_id

    @property
    def placeholders(self) -> frozenset[str]:
        """What nobody may spell."""
        if self.token_id is None:
            return frozenset()
        return frozenset([self._own, self._placeholder])

    @cached_property
    def _own(self) -> str:
        """The token that stands for pictures."""
        return str(self._tokenizer.convert_ids_to_tokens(self.token_id))

    @cached_property
    def _placeholder(self) -> str:
        """What the template writes for a picture."""
        first = str(getattr(self._tokenizer, "boi_token", None) or self._own)
        said = self._rendered([{"type": "image"}])
        return first if first in said and self._own not in said else self._own

    @cached_property
    def _placeholder_id(self) -> int:
        return int(self._tokenizer.convert_tokens_to_ids(self._placeholder))

    def set_apart(self, said: str) -> str:
        """What the template has said, as it is tokenized."""
        if self.token_id is None or self._placeholder == self._own:
            return said
        return said.replace(self._placeholder, f"{_APART}{self._placeholder}{_APART}")

    @cached_property
    def wants_parts(self) -> bool:
        """Whether the template writes texts only where they come as parts."""
        if self.token_id is None:
            return False
        parts = [{"type": "text", "text": _TRIED}]
        return not self._writes(_TRIED) and self._writes(parts)

    def given(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message, all marked, as the template takes it."""
        content = message["content"]
        if PLACE not in content and not self.wants_parts:
            return message
        return {**message, "content": list(_parts(content))}

    def expanded(self, ids: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """The tokens with those of `pictures` in the places of placeholders, as many as there are.

        Raises `ApiError` for more placeholders than pictures.
        """
        if self.token_id is None or not pictures:
            return list(ids)
        found, at = list[int](), 0
        for picture in pictures:
            try:
                place = ids.index(self._placeholder_id, at)
            except ValueError:
                break
            found += ids[at:place]
            found += picture.token_ids
            at = place + 1
        if self._placeholder_id in ids[at:]:
            raise _unwritten(pictures[-1])
        return [*found, *ids[at:]]

    def check_written(self, ids: Sequence[int], pictures: Sequence[Picture]) -> None:
        """Raise `ApiError` where the template has not written a placeholder for each picture."""
        if not pictures:
            return
        if self.token_id is None or ids.count(self._placeholder_id) != len(pictures):
            raise _unwritten(pictures[0])

    def shown(
        self, ids: Sequence[int], begin: int, pictures: Iterable[Picture], origin: str
    ) -> Iterator[Shown]:
        """Where expanded pictures lie among the tokens from `begin` on; those that were kept
        nowhere yet will be under `origin`.
        """
        for picture in pictures:
            assert self.token_id is not None
            first = ids.index(self.token_id, begin)
            start = first - picture.token_ids.index(self.token_id)
            begin = start + len(picture.token_ids)
            yield Shown(
                digest=picture.digest,
                start=start,
                count=len(picture.token_ids),
                detail=picture.detail,
                source=picture.source,
                origin=picture.origin or origin,
            )

    def _writes(self, content: Any) -> bool:
        return _TRIED in self._rendered(content)

    def _rendered(self, content: Any) -> str:
        """What a user's `content` becomes; empty where the template refuses it."""
        message = {"role": "user", "content": content}
        try:
            return str(self._tokenizer.apply_chat_template([message], tokenize=False))
        except (TemplateError, TypeError, ValueError, KeyError):
            return ""


def behind_cut(pictures: Iterable[Shown], begin: int, end: int, moved_by: int) -> Iterator[Shown]:
    """The pictures that are left of a prompt without its tokens from `begin` to `end`; those behind
    it have moved.
    """
    for one in pictures:
        if one.end <= begin:
            yield one
        elif one.start >= end:
            yield msgspec.structs.replace(one, start=one.start + moved_by)


def _parts(content: str) -> Iterator[dict[str, str]]:
    for index, text in enumerate(content.split(PLACE)):
        if index:
            yield {"type": "image"}
        if text or PLACE not in content:
            yield {"type": "text", "text": text}


def _unwritten(picture: Picture) -> ApiError:
    message = "This model's chat template writes no picture there."
    return invalid_request(message, picture.param, "unsupported_value")
