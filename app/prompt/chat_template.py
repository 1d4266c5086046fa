"""Messages to token ids, through the model's own chat template.

A later turn appends to the ids that the engine already holds; earlier text is never tokenized
again, so every full block of the earlier turns, answers included, is found in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from app.formats.reasoning.formats import ReasoningSetting
from app.formats.tools.formats import ToolFormat
from app.prompt.breakpoints import num_common, rendered_before
from app.prompt.continuation import ASKED, SENTINEL, behind_answer, behind_calls, behind_question
from app.prompt.picture_style import PictureStyle
from app.prompt.plain_text import PlainText, TooManyTokens, marked, marked_json
from app.prompt.reasoning_style import ReasoningStyle
from app.prompt.tokenizer import control_tokens, end_spelled, spelled_controls
from app.prompt.tool_style import REFUSALS, ToolStyle, tool_style
from app.prompt.truncation import without_middle
from app.request.template_options import TemplateOptions
from app.wire.common import Effort
from app.wire.errors import ApiError, ContextExceeded, invalid_request
from app.wire.functions import (
    Function,
    FunctionCall,
    Message,
    Tools,
    num_characters,
    pictures_in,
)
from app.workers import Workers

_INLINE_CHARACTERS = 4096
_INLINE_MESSAGES = 32
"""Up to here it is done at once, in less time than a worker would take to begin with it."""

_NO_TOOLS = Tools()
_USUAL = TemplateOptions()
Render = Callable[[Sequence[Message]], str]
"""What a template makes of messages, in its place in a conversation."""


class Frame(NamedTuple):
    """What a template writes around a conversation: what comes `before` it, with a short message,
    and behind it as many tokens as begin an answer.
    """

    before: str
    num_opening: int


class ChatTemplate:
    """Renders and tokenizes conversations, long ones on `workers`, each for a tenant.

    A prompt and its answer may have `context_tokens` together; no more are ever made.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        workers: Workers,
        context_tokens: int,
        tool_format: ToolFormat = "auto",
        reasoning_format: ReasoningSetting = "auto",
        picture_token_id: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.pictures = PictureStyle(tokenizer, picture_token_id)
        self._texts = PlainText(tokenizer, self.pictures.placeholders)
        self._workers = workers
        self.context_tokens = context_tokens
        self._tool_format = tool_format
        self._reasoning_format = reasoning_format
        self._frames: dict[Effort | None, Frame] = {}

    @cached_property
    def tools(self) -> ToolStyle:
        """How functions reach the model; found out once a request has some."""
        return tool_style(self._tokenizer, self._tool_format)

    @cached_property
    def reasoning(self) -> ReasoningStyle:
        """How the model reasons; found out with the first request."""
        return ReasoningStyle(self._tokenizer, self._reasoning_format)

    @cached_property
    def marker_tokens(self) -> dict[str, int]:
        """The markers of the model's calls that are tokens of their own."""
        return control_tokens(self._tokenizer, self.tools.markers)

    def tokens_in(self, text: str) -> dict[str, int]:
        """The control tokens that a text spells, and that a client may have an answer hold.

        Those are the markers of calls, and what the tokenizer does not call special: with others a
        client would open turns, and they stay spelled.
        """
        return spelled_controls(self._tokenizer, text, self.tools.markers)

    @property
    def special_ids(self) -> Collection[int]:
        """The tokens that end turns are among these."""
        return frozenset(self._tokenizer.all_special_ids)

    def check_length(self, messages: Sequence[Message], param: str) -> None:
        """Raise `ApiError` naming `param` for more text than `check_characters` lets through."""
        self.check_characters(sum(map(num_characters, messages)), param)

    def check_characters(self, characters: int, param: str) -> None:
        """Raise `ApiError` naming `param` for more than any tokens of the context spell."""
        context = self.context_tokens
        if characters > context * self._texts.longest_token:
            raise ContextExceeded(context, f"{characters} characters are more than that.", param)

    async def prompt_ids(
        self,
        tenant: str,
        messages: Sequence[Message],
        param: str,
        longest: str | None = None,
        tools: Tools = _NO_TOOLS,
        options: TemplateOptions = _USUAL,
        *,
        opens: bool = True,
    ) -> list[int]:
        """The token ids of a conversation, up to where the assistant's answer begins, or, where it
        `opens` none, to the end of what is said.

        Raises `ApiError` naming `param` where the template refuses the messages, and `longest`, if
        given, where the context cannot hold them; or `tools`, where these are too long.
        """
        longest = longest or param
        self.check_length(messages, longest)
        size = tools.num_characters
        self.check_characters(size, "tools")
        render = self.rendering(param, tools, options, opens=opens)
        return await self._ids(tenant, messages, longest, render, size=size)

    def rendering(
        self, param: str, tools: Tools, options: TemplateOptions, *, opens: bool = True
    ) -> Render:
        """How a conversation is written that begins; errors name `param`."""
        return partial(self._render, param, tools.told, options, opens=opens)

    def later_rendering(
        self,
        previous: Sequence[int],
        param: str,
        calls: Sequence[FunctionCall] | None,
        options: TemplateOptions,
        *,
        opens: bool = True,
    ) -> Render:
        """How messages are written behind `previous` ids; of `calls` see `continuation_ids`."""
        write = partial(self._render, param, (), options)
        if calls is None:
            return partial(behind_question, write, opens)
        ends = end_spelled(self._tokenizer, previous[-1]), str(self._tokenizer.eos_token)
        if calls and self.tools.native and self.tools.writes_calls:
            return partial(behind_calls, write, opens, ends, calls)
        return partial(behind_answer, write, opens, ends)

    async def breakpoints(
        self,
        tenant: str,
        ids: Sequence[int],
        messages: Sequence[Message],
        render: Render,
        previous: Sequence[int] = (),
    ) -> list[int]:
        """How many of `ids` lie before each of the last breakpoints of `messages`. The ids are
        `previous` ones and what `render` has made of the messages.
        """
        if not any("breakpoints" in one for one in messages):
            return []

        def work() -> list[int]:
            texts = rendered_before(messages, render)
            pictures = pictures_in(messages)
            before = (
                self.pictures.expanded(self._texts.encode(text, self.context_tokens), pictures)
                for text in texts
            )
            return [num_common([*previous, *one], ids) for one in before]

        return await self._workers.run(tenant, work)

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
                return [*leading, *self._texts.encode_raw(text, self.context_tokens)]
            except TooManyTokens as error:
                raise self._too_many(error, param) from None

        return work() if len(text) <= _INLINE_CHARACTERS else await self._workers.run(tenant, work)

    async def text_of(self, tenant: str, ids: Sequence[int], param: str) -> str:
        """What tokens spell. Raises `ApiError` naming `param` for ids that are none."""
        self.check_ids(ids, param)

        def work() -> str:
            return str(self._tokenizer.decode(list(ids)))

        return work() if len(ids) <= _INLINE_CHARACTERS else await self._workers.run(tenant, work)

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raises `ApiError` naming `param` for ids that are none."""
        known = self._texts.num_known
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < known:
                message = f"Token id {token_id} is outside the vocabulary of {known}."
                raise invalid_request(message, f"{param}[{index}]")

    def spelled(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary has it."""
        return list(self._tokenizer.convert_ids_to_tokens(list(ids)))

    async def continuation_ids(
        self,
        tenant: str,
        previous: Sequence[int],
        messages: Sequence[Message],
        param: str,
        calls: Sequence[FunctionCall] | None = (),
        options: TemplateOptions = _USUAL,
        *,
        opens: bool = True,
    ) -> list[int]:
        """The ids of a conversation whose turns so far are `previous`, answer included.

        `calls` are those of the answer; `None` says that nobody has answered yet. The text between
        it and the new messages comes from the template; the turn's end token is dropped from it
        where the answer ended with that token already. Raises `ApiError` as `prompt_ids` does.
        """
        self.check_length(messages, param)
        render = self.later_rendering(previous, param, calls, options, opens=opens)
        return await self._ids(tenant, messages, param, render, previous)

    def frame(self, options: TemplateOptions) -> Frame:
        """What is written around conversations of which the template is told so."""
        known = None if options.named else self._frames.get(options.effort)
        if known is not None:
            return known
        try:
            closed = self._render("input", (), options, [ASKED], opens=False)
            opened = self._render("input", (), options, [ASKED])
        except ApiError:  # these words alone are refused
            closed = opened = ""
        opening = self._texts.encode(opened.removeprefix(closed), self.context_tokens)
        frame = Frame(closed, len(opening))
        if not options.named:
            self._frames[options.effort] = frame
        return frame

    def keeps_reasoning(
        self, messages: Sequence[Message], calls: Sequence[FunctionCall], options: TemplateOptions
    ) -> bool:
        """Whether the template repeats what an answer has reasoned where `messages` follow it.

        `calls` are those of the answer. It goes by who speaks, not by what is said.
        """
        results: list[Message] = [{**one, "content": "."} for one in messages if "call_id" in one]
        answer: Message = {"role": "assistant", "content": "." if not calls else ""}
        answer["reasoning"] = SENTINEL
        if calls:
            answer["calls"] = [replace(call, arguments="{}") for call in calls]
        speaks = any(one["role"] == "user" for one in messages)
        said: list[Message] = [ASKED, answer, *results, *([ASKED] if speaks else [])]
        try:
            return SENTINEL in self._render("input", (), options, said)
        except ApiError:
            return True  # these words alone are refused: nothing is known of it

    async def shortened(self, tenant: str, messages: Sequence[Message], room: int) -> list[Message]:
        """The messages without so many turns that about `room` tokens are left."""

        def count(message: Message) -> int:
            [one], _ = self._marked([message])
            seen = sum(len(picture.token_ids) for picture in message.get("pictures", ()))
            try:
                text = f"{one['content']}{one.get('tool_calls', '')}"
                return seen + len(self._texts.encode(text, max(0, room)))
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
                [{"role": "system", "content": system + ending}, {"role": "user", "content": user}],
                "instructions",
            )
            for ending, user in zip(endings, users, strict=True)
        ]
        return ids[0][: num_common(ids[0], ids[1])]

    async def _ids(
        self,
        tenant: str,
        messages: Sequence[Message],
        param: str,
        render: Callable[[Sequence[Message]], str],
        previous: Sequence[int] = (),
        size: int = 0,
    ) -> list[int]:
        """`previous` and what `render` makes of the messages, tokenized.

        What takes a while is done on a worker; so is what only has much before it, for that comes
        one by one to where all these ids are looked at. `size` is what else there is to render.
        """
        context, pictures = self.context_tokens, pictures_in(messages)

        def work() -> list[int]:
            try:
                ids = self._texts.encode(render(messages), context)
            except TooManyTokens as error:
                raise self._too_many(error, param) from None
            self.pictures.check_written(ids, pictures)
            ids = self.pictures.expanded(ids, pictures)
            if len(ids) > context:
                raise self._too_many(TooManyTokens(len(ids)), param)
            return [*previous, *ids]

        size += sum(map(num_characters, messages)) + len(previous)
        if size <= _INLINE_CHARACTERS and len(messages) <= _INLINE_MESSAGES:
            return work()
        return await self._workers.run(tenant, work)

    def _render(
        self,
        param: str,
        functions: Sequence[Function],
        options: TemplateOptions,
        messages: Sequence[Message],
        *,
        opens: bool = True,
    ) -> str:
        given, described = self._marked(messages, functions)
        write = partial(
            self._tokenizer.apply_chat_template,
            given,
            tokenize=False,
            add_generation_prompt=opens,
            **self._told(options),
        )
        try:
            try:
                said = str(write(tools=described))
            except TypeError:
                if described is not None:
                    raise
                said = str(write(tools=[]))  # some go through a list whether there is one or not
        except REFUSALS as error:
            message = f"The model's chat template refuses these messages: {error}"
            raise invalid_request(message, param) from error
        return self.pictures.set_apart(said)

    def _told(self, options: TemplateOptions) -> dict[str, Any]:
        """What the template is told by name. Raises `ApiError` naming what cannot be."""
        mark = partial(marked_json, mark=self._texts.mark)
        return self.reasoning.variables(options.effort) | options.given(self._tokenizer, mark)

    def _too_many(self, error: TooManyTokens, param: str) -> ContextExceeded:
        return ContextExceeded(self.context_tokens, f"The prompt has {error} or more.", param)

    def _marked(
        self, messages: Sequence[Message], functions: Sequence[Function] = ()
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """Messages and functions as the template takes them."""
        mark, described = self._texts.mark, None
        if functions or any("calls" in one or "call_id" in one for one in messages):
            said, described = self.tools.rendered(messages, functions, mark)
        else:
            said = [marked(message, mark) for message in messages]
        return [self.pictures.given(one) for one in said], described
