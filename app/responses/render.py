"""A response as its stream tells it: from the pieces of its text to the events of the protocol."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from app.generate.generation import Generation, Outcome
from app.generate.lines import Piece
from app.responses.items import output_item_id
from app.wire.events import (
    EncodedLogprob,
    Event,
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    LifecycleEvent,
    LifecycleKind,
    OutputMessage,
    PartEvent,
    ResponseFailure,
    ResponseResource,
    Status,
    TextDelta,
    TextDone,
    TextPart,
    Usage,
    padding,
)

_STATUS_OF_OUTCOME: dict[Outcome, Status] = {
    "stop": "completed",
    "length": "incomplete",
    "suspended": "incomplete",
    "cancelled": "cancelled",
    "error": "failed",
}
_EVENT_OF_STATUS: dict[Status, LifecycleKind] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


class ResponseRenderer:
    """One response and its only output message, which grow with a generation.

    `item_id` and `logprobs` are given where an earlier stream has begun the message already. One
    that `pads` adds text to its deltas, so that their lengths say less. Its first event names the
    `ignored` fields of the request, whose items are `input`, as JSON.
    """

    def __init__(
        self,
        resource: ResponseResource,
        item_id: str | None = None,
        logprobs: Sequence[EncodedLogprob] = (),
        *,
        pads: bool = False,
        ignored: Sequence[str] = (),
        input: bytes = b"",
    ) -> None:
        self.resource = resource
        self._ignored = list(ignored)
        self.pads = pads
        self.input = input
        self.logprobs = list(logprobs)
        self.item_id = item_id
        """The message's id, once it has begun."""

    def opening(self) -> list[Event]:
        """How a stream begins."""
        ignored = self._ignored or UNSET
        return [
            LifecycleEvent(type="response.created", response=self.resource, ignored_fields=ignored),
            LifecycleEvent(type="response.in_progress", response=self.resource),
        ]

    def growth(self, piece: Piece) -> list[Event]:
        """More text, if the piece has some."""
        if piece.is_empty:
            return []
        self.logprobs.extend(piece.logprobs)
        events, item_id = self._message_opening()
        delta = TextDelta(
            item_id=item_id,
            delta=piece.text,
            logprobs=piece.logprobs,
            obfuscation=padding(piece.text) if self.pads else UNSET,
        )
        return [*events, delta]

    def closing(self, generation: Generation) -> list[Event]:
        """The message is as long as it will be; there is none if the engine never began."""
        if self.item_id is None and generation.outcome == "error":
            return []
        events, item_id = self._message_opening()
        message = self._message(item_id, generation)
        part = message.content[0]
        return [
            *events,
            TextDone(item_id=item_id, text=part.text, logprobs=part.logprobs),
            PartEvent(type="response.content_part.done", item_id=item_id, part=part),
            ItemEvent(type="response.output_item.done", item=message),
        ]

    def end(self, generation: Generation) -> Event:
        """Take over why the generation ended; returns the event that tells it."""
        assert generation.outcome is not None
        status = _STATUS_OF_OUTCOME[generation.outcome]
        failure = generation.failure
        output = [] if self.item_id is None else [self._message(self.item_id, generation)]
        self.resource = msgspec.structs.replace(
            self.resource,
            status=status,
            completed_at=int(time.time()) if status == "completed" else None,
            output=output,
            incomplete_details=_details(generation.outcome),
            error=failure and ResponseFailure(code=failure.code, message=failure.message),
            usage=usage_of(generation),
        )
        return LifecycleEvent(type=_EVENT_OF_STATUS[status], response=self.resource)

    def _message_opening(self) -> tuple[list[Event], str]:
        if self.item_id is not None:
            return [], self.item_id
        self.item_id = output_item_id("msg", self.resource.id, 0)
        item = OutputMessage(id=self.item_id, status="in_progress", content=[])
        part = TextPart(text="")
        return [
            ItemEvent(type="response.output_item.added", item=item),
            PartEvent(type="response.content_part.added", item_id=self.item_id, part=part),
        ], self.item_id

    def _message(self, item_id: str, generation: Generation) -> OutputMessage:
        part = TextPart(text=generation.line.text, logprobs=self.logprobs)
        whole = generation.outcome == "stop"
        return OutputMessage(
            id=item_id, status="completed" if whole else "incomplete", content=[part]
        )


def _details(outcome: Outcome) -> IncompleteDetails | None:
    if outcome == "length":
        return IncompleteDetails(reason="max_output_tokens")
    return IncompleteDetails(reason="service_restart") if outcome == "suspended" else None


def usage_of(generation: Generation) -> Usage:
    """The tokens that a generation has taken so far."""
    prompt, output = len(generation.request.prompt), generation.output_tokens
    return Usage(
        input_tokens=prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=generation.cached_tokens),
        output_tokens=output,
        total_tokens=prompt + output,
    )
