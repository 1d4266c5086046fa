"""A response as its stream tells it: from the pieces of its text to the events of the protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.generation.generation import Generation, Outcome
from app.generation.lines import Output, OutputKind, Piece, output_kind
from app.responses.items import output_item_id
from app.wire.events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomToolCall,
    EncodedLogprob,
    Event,
    FunctionCall,
    IncompleteDetails,
    InputDelta,
    InputDone,
    InputTokensDetails,
    ItemEvent,
    ItemStatus,
    LifecycleEvent,
    LifecycleKind,
    OutputItem,
    OutputMessage,
    OutputTokensDetails,
    PartEvent,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    ReasoningText,
    ResponseFailure,
    ResponseResource,
    Status,
    TextDelta,
    TextDone,
    TextPart,
    Usage,
    made_id,
    padding,
)

_STATUS_OF_OUTCOME: dict[Outcome, Status] = {
    "stop": "completed",
    "length": "incomplete",
    "suspended": "incomplete",
    "cancelled": "cancelled",
    "error": "failed",
}
_REASON_OF_OUTCOME: dict[Outcome, Literal["max_output_tokens", "service_restart"]] = {
    "length": "max_output_tokens",
    "suspended": "service_restart",
}
_PREFIXES: dict[OutputKind, str] = {
    "text": "msg",
    "reasoning": "rs",
    "call": "fc",
    "custom": "ctc",
}
_EVENT_OF_STATUS: dict[Status, LifecycleKind] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


class ResponseRenderer:
    """One response and its output items, which grow with a generation.

    `logprobs` has a list for each item that has begun, those of a message's text. It is given where
    an earlier stream has begun some. One that `pads` adds text to its deltas, so that their lengths
    say less. Its first event names the `ignored` fields of the request, whose items are `input`, as
    JSON. Reasoning items carry what they hold as `seal` makes it, too.
    """

    def __init__(
        self,
        resource: ResponseResource,
        logprobs: Sequence[Sequence[EncodedLogprob]] = (),
        *,
        pads: bool = False,
        ignored: Sequence[str] = (),
        input: bytes = b"",
        seal: Callable[[str], str] | None = None,
    ) -> None:
        self.resource = resource
        self._seal = seal and cache(seal)  # no two of its events tell another one
        self._ignored = list(ignored)
        self.pads = pads
        self.input = input
        self.logprobs = [list(of_item) for of_item in logprobs]

    @property
    def seals(self) -> bool:
        """Whether reasoning is told encrypted, too."""
        return self._seal is not None

    def opening(self) -> list[Event]:
        """How a stream begins."""
        ignored = self._ignored or UNSET
        return [
            LifecycleEvent(type="response.created", response=self.resource, ignored_fields=ignored),
            LifecycleEvent(type="response.in_progress", response=self.resource),
        ]

    def growth(self, piece: Piece, generation: Generation) -> list[Event]:
        """More of an item, or the next one, if the piece has something."""
        if piece.is_empty:
            return []
        index = len(self.logprobs) - 1
        begins = index < 0 or piece.kind in ("call", "custom")
        if begins or output_kind(piece.kind) != self._output(index, generation).kind:
            events = [*self._item_done(generation, "completed"), *self._item_begun(generation)]
            index += 1
        else:
            events = []
        self.logprobs[index].extend(piece.logprobs)
        item_id = self._item_id(index, generation)
        obfuscation = padding(piece.text) if self.pads else UNSET
        place: Any = {"item_id": item_id, "output_index": index, "delta": piece.text}
        if piece.kind == "arguments":
            events.append(ArgumentsDelta(**place, obfuscation=obfuscation))
        elif piece.kind == "input":
            events.append(InputDelta(**place, obfuscation=obfuscation))
        elif piece.kind == "reasoning":
            events.append(ReasoningDelta(**place, obfuscation=obfuscation))
        elif piece.kind == "text":
            events.append(TextDelta(**place, logprobs=piece.logprobs, obfuscation=obfuscation))
        return events

    def closing(self, generation: Generation) -> list[Event]:
        """The items are as long as they will be; there is none if the engine never began."""
        has_none = generation.outcome == "error" or generation.prompt.said is not None
        begun = [] if self.logprobs or has_none else self._item_begun(generation)
        return [*begun, *self._item_done(generation, _last_status(generation))]

    def end(self, generation: Generation) -> Event:
        """Take over why the generation ended; returns the event that tells it."""
        assert generation.outcome is not None
        status = _STATUS_OF_OUTCOME[generation.outcome]
        if generation.outcome == "length" and generation.prompt.said is not None:
            status = "completed"  # no answer is all that was asked for
        failure, options = generation.failure, self.resource.prompt_cache_options
        # Whether the client asks why the prompt was found in the cache, or was not.
        diagnoses = not isinstance(options, UnsetType) and (
            options.comparison_response_id or self.resource.previous_response_id
        )
        output = [self._item(index, generation, "completed") for index in range(len(self.logprobs))]
        if output:
            output[-1].status = _last_status(generation)
        reason = _REASON_OF_OUTCOME.get(generation.outcome) if status != "completed" else None
        self.resource = msgspec.structs.replace(
            self.resource,
            status=status,
            completed_at=int(time.time()) if status == "completed" else None,
            output=output,
            incomplete_details=reason and IncompleteDetails(reason=reason),
            error=failure and ResponseFailure(code=failure.code, message=failure.message),
            usage=usage_of(generation),
            prompt_cache_diagnostics=generation.cache_diagnostics if diagnoses else UNSET,
        )
        return LifecycleEvent(type=_EVENT_OF_STATUS[status], response=self.resource)

    def _item_begun(self, generation: Generation) -> list[Event]:
        """The next item begins: the message, reasoning or call that the answer has there."""
        index = len(self.logprobs)
        self.logprobs.append([])
        item = self._item(index, generation, "in_progress")
        if isinstance(item, FunctionCall):
            item.arguments = ""
        elif isinstance(item, CustomToolCall):
            item.input = ""
        else:
            item.content = []
        events: list[Event] = [
            ItemEvent(type="response.output_item.added", output_index=index, item=item)
        ]
        if not isinstance(item, FunctionCall | CustomToolCall):
            part = TextPart(text="") if isinstance(item, OutputMessage) else ReasoningText(text="")
            place: Any = {"item_id": item.id, "output_index": index}
            events.append(PartEvent(**place, type="response.content_part.added", part=part))
        return events

    def _item_done(self, generation: Generation, status: ItemStatus) -> list[Event]:
        """The last item that has begun is whole; nothing where none has."""
        index = len(self.logprobs) - 1
        if index < 0:
            return []
        item = self._item(index, generation, status)
        place: Any = {"item_id": item.id, "output_index": index}
        if isinstance(item, FunctionCall):
            events: list[Event] = [ArgumentsDone(**place, name=item.name, arguments=item.arguments)]
        elif isinstance(item, CustomToolCall):
            events = [InputDone(**place, input=item.input)]
        else:
            [part] = item.content
            events = [
                TextDone(**place, text=part.text, logprobs=part.logprobs)
                if isinstance(part, TextPart)
                else ReasoningDone(**place, text=part.text),
                PartEvent(**place, type="response.content_part.done", part=part),
            ]
        done = ItemEvent(type="response.output_item.done", output_index=index, item=item)
        return [*events, done]

    def _item(self, index: int, generation: Generation, status: ItemStatus) -> OutputItem:
        """An item of the answer so far."""
        output = self._output(index, generation)
        item_id = self._item_id(index, generation)
        if output.kind == "reasoning":
            reasoned = [ReasoningText(text=output.text)]
            item = Reasoning(id=item_id, status=status, content=reasoned)
            if self._seal is not None and status != "in_progress":
                item.encrypted_content = self._seal(output.text)
            return item
        if output.kind in ("call", "custom"):
            call_id, text = made_id("call_", self.resource.id, index), output.text
            named: Any = {"id": item_id, "call_id": call_id, "name": output.name, "status": status}
            if output.kind == "call":
                return FunctionCall(**named, arguments=text)
            return CustomToolCall(**named, input=text)
        part = TextPart(text=output.text, logprobs=self.logprobs[index])
        return OutputMessage(id=item_id, status=status, content=[part])

    def _item_id(self, index: int, generation: Generation) -> str:
        kind = _PREFIXES[self._output(index, generation).kind]
        return output_item_id(kind, self.resource.id, index)

    def _output(self, index: int, generation: Generation) -> Output:
        outputs = generation.line.outputs
        return outputs[index] if index < len(outputs) else Output()


def _last_status(generation: Generation) -> ItemStatus:
    is_whole = generation.outcome == "stop" and not generation.line.is_cut
    return "completed" if is_whole else "incomplete"


def usage_of(generation: Generation) -> Usage:
    """The tokens that a generation has taken so far."""
    prompt, output = len(generation.request.prompt), generation.output_tokens
    return Usage(
        input_tokens=prompt,
        input_tokens_details=InputTokensDetails(
            cached_tokens=generation.cached_tokens, cache_write_tokens=generation.cache_write_tokens
        ),
        output_tokens=output,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=generation.reasoning_tokens),
        total_tokens=prompt + output,
    )
