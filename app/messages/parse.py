"""A body of the Messages API as a request to generate: what its fields mean together."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby

import msgspec

from app.request.cache_wish import CacheWish
from app.request.constraint import Constraint, constraint_of
from app.request.request import FieldNames, GenerationRequest, Item, Thought
from app.request.template_options import TemplateOptions
from app.wire.common import CacheControl, Effort, SamplingFields
from app.wire.errors import invalid_request
from app.wire.functions import (
    PLACE,
    FunctionCall,
    Message,
    Picture,
    Tools,
    pictures_in,
    plain,
)
from app.wire.messages import (
    CountBody,
    MessagesBody,
    RedactedBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from app.wire.parts.pictures import ImageBlock, with_content
from app.wire.prompt_cache import MOST_WRITTEN
from app.wire.tools import NamedFunction, asked_tools
from engine.api import Grammar

_SAYS = {
    "user": (TextBlock, ImageBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedBlock, ToolUseBlock),
    "system": (TextBlock,),
}
_SECONDS = {"5m": 300.0, "1h": 3600.0}


def generation_request(body: CountBody) -> GenerationRequest:
    """What a body asks for, or would. Raises `ApiError` naming a field that does not go with
    others.
    """
    if body.messages[-1].role != "user":
        message = "The last turn has to be the user's: answers cannot be begun for the model."
        raise invalid_request(message, f"messages[{len(body.messages) - 1}]", "unsupported_value")
    sampling, max_tokens = SamplingFields(), None
    if isinstance(body, MessagesBody):
        sampling, max_tokens = body.sampling, body.max_tokens
    tools = _tools(body)
    thinking = body.thinking
    budget = None if thinking is None else thinking.budget_tokens
    if budget is not None and max_tokens is not None and budget >= max_tokens:
        message = "'thinking.budget_tokens' has to be less than 'max_tokens'."
        raise invalid_request(message, "thinking.budget_tokens")
    return GenerationRequest(
        id=f"msg_{secrets.token_hex(12)}",
        items=list(_Said(body).items()),
        names=FieldNames("messages", "max_tokens", "tools[{}].input_schema", sealed="signature"),
        sampling=sampling,
        model=body.model,
        max_tokens=max_tokens,
        constraint=constraint_of(sampling, _format(body), None, tools),
        tools=tools,
        template_options=TemplateOptions(_effort(body)),
        reasoning_tokens=budget,
        cache=CacheWish(lease_seconds=lease_seconds(body)),
    )


def lease_seconds(body: CountBody) -> float | None:
    """For how long what lies before a body's breakpoints is to be kept: the longest of their times,
    `None` where there are none. Raises `ApiError` for too many.
    """
    marks = list(_marks(body))
    if len(marks) > MOST_WRITTEN:
        message = f"There are {len(marks)} blocks with 'cache_control': {MOST_WRITTEN} at most."
        raise invalid_request(message, "cache_control")
    return max((_SECONDS[mark.ttl or "5m"] for mark in marks), default=None)


def _marks(body: CountBody) -> Iterator[CacheControl]:
    system = body.system if isinstance(body.system, list) else []
    blocks = [*(body.tools or ()), *system, *(one for turn in body.messages for one in turn.blocks)]
    for block in [*blocks, body]:
        mark = getattr(block, "cache_control", None)
        if mark is not None:
            yield mark


def _tools(body: CountBody) -> Tools:
    tools, choice = body.tools or (), body.tool_choice
    if choice is None:
        return asked_tools(tools, None, None)
    parallel = not choice.disable_parallel_tool_use
    match choice.type:
        case "tool":
            # Names may be longer than elsewhere, and have been looked at.
            named = NamedFunction.model_construct(type="function", name=choice.name or "")
            return asked_tools(tools, named, parallel)
        case "any":
            return asked_tools(tools, "required", parallel)
        case "auto" | "none":
            return asked_tools(tools, choice.type, parallel)


def _format(body: CountBody) -> Constraint | None:
    configured = body.output_config and body.output_config.format
    if configured and body.output_format:
        raise invalid_request("Give 'output_format' or 'output_config.format'.", "output_format")
    asked = configured or body.output_format
    if asked is None:
        return None
    source = msgspec.json.encode(asked.schema_).decode()
    field = "output_config.format.schema" if configured else "output_format.schema"
    return Constraint(Grammar(kind="json_schema", source=source), field)


def _effort(body: CountBody) -> Effort:
    """A model that can do without reasoning does, unless thinking is asked for."""
    if body.thinking is None or body.thinking.type == "disabled":
        return "none"
    return (body.output_config and body.output_config.effort) or "medium"


class _Said:
    """What a body says, as items, with its breakpoints."""

    def __init__(self, body: CountBody) -> None:
        self._body = body
        self._is_owed = False
        """Whether a breakpoint lies at the beginning of the next message's content: behind what
        templates write of tools and calls, wherever that is."""

    def items(self) -> Iterator[Item]:
        """Raises `ApiError` naming a block that its side cannot say."""
        body = self._body
        if body.system:
            yield self._message("system", [("system", one) for one in _texts(body.system)])
        self._is_owed = any(one.cache_control for one in body.tools or ())
        turns = enumerate(body.messages)
        parts = (self._turn(turn, f"messages[{number}]") for number, turn in turns)
        said = list(_joined(chain.from_iterable(parts)))
        if body.cache_control is not None and said:
            _mark(said[-1])
        yield from said

    def _turn(self, turn: Turn, param: str) -> Iterator[Item]:
        _check_sides(turn, param)
        blocks, uses = turn.blocks, [one for one in turn.blocks if isinstance(one, ToolUseBlock)]
        for index, block in enumerate(blocks):
            if isinstance(block, ThinkingBlock):
                yield Thought(block.thinking, None if block.thinking else block.signature or None)
            elif isinstance(block, ToolResultBlock):
                yield self._result(block, f"{param}.content[{index}].content")
        said_here = [
            (f"{param}.content[{index}]", block)
            for index, block in enumerate(blocks)
            if isinstance(block, TextBlock | ImageBlock)
        ]
        if said_here or turn.role == "assistant":
            said = self._message(turn.role, said_here)
            if uses:
                said["calls"] = list(map(_call, uses))
            yield said
        self._is_owed |= any(one.cache_control for one in uses)

    def _result(self, block: ToolResultBlock, param: str) -> Message:
        result = self._message("tool", [])
        failed: Message = {"role": "tool", "content": "Error: " if block.is_error else ""}
        said = with_content(failed, block.content, param)
        result["content"] = f"{failed['content']}{said['content']}"
        result["call_id"] = block.tool_use_id
        if "pictures" in said:
            result["pictures"] = said["pictures"]
        if block.cache_control is not None:
            _mark(result)
        return result

    def _message(self, role: str, blocks: Sequence[tuple[str, TextBlock | ImageBlock]]) -> Message:
        """What blocks say, each under the name of its field."""
        texts, pictures = list[str](), list[Picture]()
        marks, length = [0] if self._is_owed else [], 0
        for param, block in blocks:
            if isinstance(block, ImageBlock):
                pictures.append(block.picture(param))
                texts.append(PLACE)
            else:
                texts.append(plain(block.text))
            length += len(texts[-1])
            if block.cache_control is not None:
                marks.append(length)
        self._is_owed = False
        said: Message = {"role": role, "content": "".join(texts)}
        if marks:
            said["breakpoints"] = marks
        if pictures:
            said["pictures"] = pictures
        return said


def _check_sides(turn: Turn, param: str) -> None:
    """Raises `ApiError` naming a block that its side cannot say."""
    for number, block in enumerate(turn.blocks):
        if not isinstance(block, _SAYS[turn.role]):
            message = f"No turn of the {turn.role}'s has blocks of type {block.type}."
            raise invalid_request(message, f"{param}.content[{number}].type")


def _call(block: ToolUseBlock) -> FunctionCall:
    return FunctionCall(block.id, block.name, msgspec.json.encode(block.input).decode())


def _texts(content: str | list[TextBlock]) -> list[TextBlock]:
    if isinstance(content, str):
        return [TextBlock.model_construct(type="text", text=content)]
    return content


def _joined(items: Iterable[Item]) -> Iterator[Item]:
    """What one side says in several turns, said in one."""
    for speaker, several in groupby(items, _speaker):
        if speaker in (None, "tool"):
            yield from several
        else:
            yield _one(list(several))


def _speaker(item: Item) -> str | None:
    return item["role"] if isinstance(item, dict) else None


def _one(messages: Sequence[Item]) -> Item:
    """Messages of one side as one, in time that grows as they do."""
    said = [message for message in messages if isinstance(message, dict)]
    texts = [message["content"] for message in said]
    starts = accumulate(map(len, texts[:-1]), initial=0)
    marks = [
        start + at
        for message, start in zip(said, starts, strict=True)
        for at in message.get("breakpoints", ())
    ]
    calls = [call for message in said for call in message.get("calls", ())]
    pictures = pictures_in(said)
    whole: Message = {"role": said[0]["role"], "content": "".join(texts)}
    if pictures:
        whole["pictures"] = pictures
    if marks:
        whole["breakpoints"] = marks
    if calls:
        whole["calls"] = calls
    return whole


def _mark(said: Item) -> None:
    """Have a prefix end with a message."""
    assert isinstance(said, dict), "a user's turn ends with a message"
    said["breakpoints"] = [*said.get("breakpoints", ()), len(said["content"])]
