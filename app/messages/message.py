"""One answer of the Messages API: whole, or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec

from app.generation.generation import Generation
from app.generation.lines import Output, Piece
from app.observe.metrics import Metrics
from app.transport.server_sent_events import sse_event
from app.wire.errors import ApiError, internal_error
from app.wire.events import encode_json, made_id
from app.wire.message_events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    CacheCreation,
    Ending,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUsage,
    MoreInput,
    MoreText,
    MoreThinking,
    OutputDetails,
    SentBlock,
    SentMessage,
    SentText,
    SentThinking,
    SentToolUse,
    Signature,
    StopReason,
    message_error,
)

_SHORT_SECONDS = 300.0
"""The shorter of this API's two lifetimes in the cache."""
Seal = Callable[[str], str]
"""What stands for a text that this service alone can read."""


class Answer:
    """A running answer; whoever holds it must run it or close the generation."""

    def __init__(
        self,
        generation: Generation,
        model_id: str,
        metrics: Metrics,
        request_id: str | None,
        seal: Seal,
        *,
        is_marked: bool,
        shows_thinking: bool,
    ) -> None:
        """One that `is_marked` tells what is new before its prompt's last breakpoint."""
        self._generation = generation
        self._model_id = model_id
        self._metrics = metrics
        self._request_id = request_id
        self._seal = seal
        self._is_marked = is_marked
        self._shows_thinking = shows_thinking

    async def whole(self) -> bytes:
        """The answer as JSON. Raises `ApiError` if it fails."""
        async with aclosing(self._generation.pieces()) as pieces:
            async for _ in pieces:
                pass
        self._finish()
        outputs = self._generation.lines[0].outputs
        calls = 0
        content: list[SentBlock] = []
        for output in outputs:
            if output.kind == "call":
                content.append(self._call(output, calls))
                calls += 1
            elif output.kind == "reasoning":
                shown = output.text if self._shows_thinking else ""
                content.append(SentThinking(thinking=shown, signature=self._seal(output.text)))
            elif output.text.strip() or len(outputs) == 1:
                content.append(SentText(text=output.text))
        ending = self._ending()
        return encode_json(self._message(content, ending))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; a failure is the last one."""
        blocks = _Blocks(self._tool_id, self._seal, shows_thinking=self._shows_thinking)
        is_begun = False
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                if not is_begun:
                    is_begun = True
                    yield _event(MessageStart(message=self._message([], None)))
                for event in blocks.take(piece):
                    yield _event(event)
        try:
            self._finish()
        except ApiError as error:
            yield _event(message_error(error, self._request_id))
            return
        if not is_begun:
            yield _event(MessageStart(message=self._message([], None)))
        for event in blocks.end():
            yield _event(event)
        yield _event(MessageDelta(delta=self._ending(), usage=self._usage()))
        yield _event(MessageStop())

    def _finish(self) -> None:
        """Account for the end. Raises `ApiError` where it is a failure."""
        outcome = self._generation.outcome
        self._metrics.requests.labels("messages", outcome).inc()
        if outcome not in ("stop", "length"):
            raise self._generation.failure or internal_error()

    def _message(self, content: list[SentBlock], ending: Ending | None) -> SentMessage:
        return SentMessage(
            id=self._generation.request.request_id,
            model=self._model_id,
            content=content,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=self._usage(),
        )

    def _ending(self) -> Ending:
        line = self._generation.lines[0]
        reason: StopReason = "end_turn"
        if line.end == "length":
            reason = "max_tokens"
        elif line.stop_string is not None:
            reason = "stop_sequence"
        elif line.calls:
            reason = "tool_use"
        return Ending(stop_reason=reason, stop_sequence=line.stop_string)

    def _usage(self) -> MessageUsage:
        """Tokens so far. Only what lies before the last breakpoint counts as kept."""
        generation = self._generation
        read, created = generation.cached_tokens, 0
        if self._is_marked and generation.prompt.breakpoints:
            kept = min(read + generation.cache_write_tokens, generation.prompt.breakpoints[-1])
            created = max(0, kept - read)
        is_long = generation.request.cache.lease_s > _SHORT_SECONDS  # as far as its tenant may
        return MessageUsage(
            input_tokens=len(generation.request.prompt) - read - created,
            cache_creation_input_tokens=created,
            cache_read_input_tokens=read,
            cache_creation=CacheCreation(
                ephemeral_5m_input_tokens=0 if is_long else created,
                ephemeral_1h_input_tokens=created if is_long else 0,
            ),
            output_tokens=generation.output_tokens,
            output_tokens_details=OutputDetails(thinking_tokens=generation.reasoning_tokens),
        )

    def _call(self, output: Output, number: int) -> SentToolUse:
        return SentToolUse(id=self._tool_id(number), name=output.name, input=_object(output.text))

    def _tool_id(self, number: int) -> str:
        return made_id("toolu_", self._generation.request.request_id, 0, number)


class _Blocks:
    """An answer's pieces as events of its blocks.

    White space is held back until something follows: no block is blank unless it is all there is.
    """

    def __init__(self, tool_id: Callable[[int], str], seal: Seal, *, shows_thinking: bool) -> None:
        self._tool_id = tool_id
        self._seal = seal
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: SentBlock | None = None
        self._thought: list[str] = []
        self._calls = 0
        self._space = ""

    def take(self, piece: Piece) -> Iterator[MessageEvent]:
        """What a piece tells."""
        if piece.kind == "call":
            yield from self._begin(
                SentToolUse(id=self._tool_id(self._calls), name=piece.text, input={})
            )
            self._calls += 1
        elif not piece.text:
            return
        elif piece.kind == "arguments":
            yield self._grown(MoreInput(partial_json=piece.text))
        elif piece.kind == "reasoning":
            if not isinstance(self._open, SentThinking):
                yield from self._begin(SentThinking(thinking="", signature=""))
            self._thought.append(piece.text)
            if self._shows_thinking:
                yield self._grown(MoreThinking(thinking=piece.text))
        elif isinstance(self._open, SentText) or piece.text.strip():
            if not isinstance(self._open, SentText):
                yield from self._begin(SentText(text=""))
            text, self._space = self._space + piece.text, ""
            yield self._grown(MoreText(text=text))
        else:
            self._space += piece.text

    def end(self) -> Iterator[MessageEvent]:
        """What the end tells."""
        if self._index < 0 and self._space:
            yield from self._begin(SentText(text=""))
            yield self._grown(MoreText(text=self._space))
        yield from self._close()

    def _begin(self, block: SentBlock) -> Iterator[MessageEvent]:
        yield from self._close()
        self._index, self._open = self._index + 1, block
        if not isinstance(block, SentText):
            self._space = ""
        yield BlockStart(index=self._index, content_block=block)

    def _close(self) -> Iterator[MessageEvent]:
        if self._open is None:
            return
        if isinstance(self._open, SentThinking):
            yield self._grown(Signature(signature=self._seal("".join(self._thought))))
            self._thought = []
        self._open = None
        yield BlockStop(index=self._index)

    def _grown(self, delta: MoreText | MoreThinking | Signature | MoreInput) -> BlockDelta:
        return BlockDelta(index=self._index, delta=delta)


def _event(event: MessageEvent) -> bytes:
    kind = type(event).__struct_config__.tag
    return sse_event(encode_json(event), str(kind).encode())


def _object(arguments: str) -> dict[str, Any]:
    """A call's input; nothing where it was cut."""
    try:
        found = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
