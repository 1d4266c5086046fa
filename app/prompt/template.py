"""Messages to token ids, through the model's own chat template.

A later turn appends to the ids that the engine already holds; earlier text is never tokenized
again, so every full block of the earlier turns, answers included, is found in the cache.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NotRequired, TypedDict

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from app.prompt.plain_text import PlainText, TooManyTokens
from app.prompt.truncation import without_middle
from app.upkeep.workers import Workers
from app.wire.errors import ContextExceeded, invalid_request

_INLINE_CHARACTERS = 4096
_INLINE_MESSAGES = 32
"""Up to here it is done at once, in less time than a worker would take to begin with it."""

_SENTINEL = f"end-of-answer-{secrets.token_hex(8)}"
"""What no client can write, being unable to guess it."""


class Message(TypedDict):
    """One message as templates take it; developer messages are system messages to a template.

    Few templates write a speaker's `name`.
    """

    role: str
    content: str
    name: NotRequired[str]


class ChatTemplate:
    """Renders and tokenizes conversations, long ones on `workers`, each for a tenant.

    A prompt may have `context_tokens` tokens; no more are ever made.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        workers: Workers,
        context_tokens: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = PlainText(tokenizer)
        self._workers = workers
        self._context_tokens = context_tokens

    @property
    def context_tokens(self) -> int:
        """What a prompt and its answer may have together."""
        return self._context_tokens

    @property
    def special_ids(self) -> Collection[int]:
        """The tokens that end turns are among these."""
        return frozenset(self._tokenizer.all_special_ids)

    def check_length(self, messages: Sequence[Message], param: str) -> None:
        """Raise `ApiError` naming `param` for more text than `check_characters` lets through."""
        self.check_characters(sum(len(message["content"]) for message in messages), param)

    def check_characters(self, characters: int, param: str) -> None:
        """Raise `ApiError` naming `param` for more than any tokens of the context spell."""
        context = self._context_tokens
        if characters > context * self._texts.longest_token:
            raise ContextExceeded(context, f"{characters} characters are more than that.", param)

    async def prompt_ids(
        self, tenant: str, messages: Sequence[Message], param: str, longest: str | None = None
    ) -> list[int]:
        """The token ids of a conversation, up to where the assistant's answer begins.

        Raises `ApiError` naming `param` where the template refuses the messages, and `longest`, if
        given, where the context cannot hold them.
        """
        longest = longest or param
        self.check_length(messages, longest)
        return await self._ids(tenant, messages, longest, partial(self._render, param))

    async def text_ids(
        self, tenant: str, text: str, param: str, *, add_special: bool = True
    ) -> list[int]:
        """The ids of a text that is a prompt without a template, behind what all texts begin with.

        Control tokens that it spells are such: it is all its author's. Raises `ApiError` naming
        `param` where the context cannot hold it.
        """
        self.check_characters(len(text), param)
        leading = self._texts.leading_ids if add_special else []

        def work() -> list[int]:
            try:
                return [*leading, *self._texts.encode_raw(text, self._context_tokens)]
            except TooManyTokens as error:
                raise self._too_many(error, param) from None

        return work() if len(text) <= _INLINE_CHARACTERS else await self._workers.run(tenant, work)

    async def text_of(self, tenant: str, ids: Sequence[int], param: str) -> str:
        """What tokens spell. Raises `ApiError` naming `param` for ids that are none."""
        known = len(self._tokenizer)
        for index, token_id in enumerate(ids):
            if token_id >= known:
                message = f"Token id {token_id} is outside the vocabulary of {known}."
                raise invalid_request(message, f"{param}[{index}]")

        def work() -> str:
            return str(self._tokenizer.decode(list(ids)))

        return work() if len(ids) <= _INLINE_CHARACTERS else await self._workers.run(tenant, work)

    def spelled(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary has it."""
        return list(self._tokenizer.convert_ids_to_tokens(list(ids)))

    async def continuation_ids(
        self, tenant: str, previous: Sequence[int], messages: Sequence[Message], param: str
    ) -> list[int]:
        """The ids of a conversation whose turns so far are `previous`, answer included.

        The text between the last answer and the new messages comes from the template; the turn's
        end token is dropped from it where the answer ended with that token already. Raises
        `ApiError` as `prompt_ids` does.
        """
        self.check_length(messages, param)
        render = partial(self._render_after, previous[-1], param)
        return await self._ids(tenant, messages, param, render, previous)

    async def shortened(self, tenant: str, messages: Sequence[Message], room: int) -> list[Message]:
        """The messages without so many turns that about `room` tokens are left."""

        def count(message: Message) -> int:
            marked = self._marked(message)
            try:
                return len(self._texts.encode(marked["content"], max(0, room)))
            except TooManyTokens as error:
                return int(error.args[0])

        work = partial(without_middle, messages, room, count)
        return await self._workers.run(tenant, work)

    async def prefix_ids(self, tenant: str, system: str, *, whole: bool) -> list[int]:
        """The ids that every conversation under a system prompt starts with.

        `system` is the prompt's text, or its part before the first variable (`whole=False`). Two
        conversations that differ at once after it are rendered; what they share is the prefix.
        """
        endings = ("", "") if whole else ("0 first", "x other")
        users = ("0 first", "x other") if whole else (".", ".")
        ids = [
            await self.prompt_ids(
                tenant,
                [
                    {"role": "system", "content": system + ending},
                    {"role": "user", "content": user},
                ],
                "instructions",
            )
            for ending, user in zip(endings, users, strict=True)
        ]
        return ids[0][: common_prefix(ids[0], ids[1])]

    async def _ids(
        self,
        tenant: str,
        messages: Sequence[Message],
        param: str,
        render: Callable[[Sequence[Message]], str],
        previous: Sequence[int] = (),
    ) -> list[int]:
        """`previous` and what `render` makes of the messages, tokenized.

        What takes a while is done on a worker; so is what only has much before it, for that comes
        one by one to where all these ids are looked at.
        """
        context = self._context_tokens

        def work() -> list[int]:
            try:
                return [*previous, *self._texts.encode(render(messages), context)]
            except TooManyTokens as error:
                raise self._too_many(error, param) from None

        characters = sum(len(message["content"]) for message in messages)
        size = characters + len(previous)
        if size <= _INLINE_CHARACTERS and len(messages) <= _INLINE_MESSAGES:
            return work()
        return await self._workers.run(tenant, work)

    def _render(self, param: str, messages: Sequence[Message]) -> str:
        marked = [self._marked(message) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                marked, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            message = f"The model's chat template refuses these messages: {error}"
            raise invalid_request(message, param) from error
        return str(text)

    def _too_many(self, error: TooManyTokens, param: str) -> ContextExceeded:
        return ContextExceeded(self._context_tokens, f"The prompt has {error} or more.", param)

    def _marked(self, message: Message) -> Message:
        role = message["role"]
        marked: Message = {"role": role, "content": self._texts.mark(message["content"], role)}
        if "name" in message:
            marked["name"] = self._texts.mark(message["name"], "user")
        return marked

    def _render_after(self, last: int, param: str, messages: Sequence[Message]) -> str:
        """What the template writes behind an answer whose last token is `last`."""
        answered: list[Message] = [
            {"role": "user", "content": "."},
            {"role": "assistant", "content": _SENTINEL},
        ]
        rendered = self._render(param, [*answered, *messages])
        _, found, tail = rendered.partition(_SENTINEL)
        if not found:
            message = "This model's chat template cannot continue a conversation."
            raise invalid_request(message, "previous_response_id", "unsupported_value")
        if last in self._tokenizer.all_special_ids:
            end = str(self._tokenizer.decode([last], skip_special_tokens=False))
            tail = tail.removeprefix(end)
        return tail


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids the two have in common."""
    if right[: len(left)] == left:
        return len(left)
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
