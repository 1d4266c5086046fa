"""Messages to token ids, through the model's own chat template.

A later turn appends to the ids that the engine already holds; earlier text is never tokenized
again, so every full block of the earlier turns, answers included, is found in the cache.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import TypedDict

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from app.prompt.plain_text import PlainText
from app.wire.errors import invalid_request

_INLINE_CHARACTERS = 8192
"""Longer texts are tokenized on a thread, so that one long prompt does not stall every stream."""

_SENTINEL = f"end-of-answer-{secrets.token_hex(8)}"
"""What no client can write, being unable to guess it."""


class Message(TypedDict):
    """One message as templates take it; developer messages are system messages to a template."""

    role: str
    content: str


class ChatTemplate:
    """Renders and tokenizes conversations."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._texts = PlainText(tokenizer)

    async def prompt_ids(self, messages: Sequence[Message], param: str) -> list[int]:
        """The token ids of a conversation, up to where the assistant's answer begins.

        Raises `ApiError` naming `param` where the template refuses the messages.
        """
        return await self._encode(self._render(messages, param))

    async def continuation_ids(
        self, previous: Sequence[int], messages: Sequence[Message], param: str
    ) -> list[int]:
        """The ids of a conversation whose turns so far are `previous`, answer included.

        The text between the last answer and the new messages comes from the template; the turn's
        end token is dropped from it where the answer ended with that token already. Raises
        `ApiError` naming `param` where the template refuses the messages.
        """
        answered: list[Message] = [
            {"role": "user", "content": "."},
            {"role": "assistant", "content": _SENTINEL},
        ]
        rendered = self._render([*answered, *messages], param)
        _, found, tail = rendered.partition(_SENTINEL)
        if not found:
            message = "This model's chat template cannot continue a conversation."
            raise invalid_request(message, "previous_response_id", "unsupported_value")
        last = str(self._tokenizer.decode([previous[-1]], skip_special_tokens=False))
        if previous[-1] in self._tokenizer.all_special_ids:
            tail = tail.removeprefix(last)
        return [*previous, *await self._encode(tail)]

    async def head_ids(self, system: str, *, whole: bool) -> list[int]:
        """The ids that every conversation under a system prompt starts with.

        `system` is the prompt's text, or its part before the first variable (`whole=False`). Two
        conversations that differ at once after it are rendered; what they share is the head.
        """
        endings = ("", "") if whole else ("0 first", "x other")
        users = ("0 first", "x other") if whole else (".", ".")
        ids = [
            await self.prompt_ids(
                [
                    {"role": "system", "content": system + ending},
                    {"role": "user", "content": user},
                ],
                "instructions",
            )
            for ending, user in zip(endings, users, strict=True)
        ]
        return ids[0][: common_prefix(ids[0], ids[1])]

    def _render(self, messages: Sequence[Message], param: str) -> str:
        marked = [
            {"role": one["role"], "content": self._texts.mark(one["content"], one["role"])}
            for one in messages
        ]
        try:
            text = self._tokenizer.apply_chat_template(
                marked, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            message = f"The model's chat template refuses these messages: {error}"
            raise invalid_request(message, param) from error
        return str(text)

    async def _encode(self, text: str) -> list[int]:
        if len(text) > _INLINE_CHARACTERS:
            return await asyncio.to_thread(self._texts.encode, text)
        return self._texts.encode(text)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids the two have in common."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
