"""One response of the Responses API: from its create body to the events of its stream."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from transformers import PreTrainedTokenizerBase

from app.errors import ApiError, invalid_request
from app.generation import Generation, Piece
from app.history import History, SocketHistory, Turn, pack_ids
from app.limits import ServiceLimits
from app.metrics import Metrics
from app.turns import Prompt, Said, TurnBuilder, engine_request, or_default, output_budget
from app.wire_events import (
    Event,
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    LifecycleEvent,
    LifecycleKind,
    OutputMessage,
    OutputTokensDetails,
    PartEvent,
    ResponseFailure,
    ResponseResource,
    Status,
    TextDelta,
    TextDone,
    TextPart,
    TokenLogprob,
    Usage,
)
from app.wire_responses import LOGPROBS, CreateBody, PromptReference
from engine.client import EngineClient
from tenants.records import Tenant

_STATUS_OF_OUTCOME: dict[str, Status] = {
    "stop": "completed",
    "length": "incomplete",
    "cancelled": "cancelled",
    "error": "failed",
}
_EVENT_OF_STATUS: dict[Status, LifecycleKind] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


@dataclass(frozen=True)
class ModelNames:
    """The served model's id, and its last path segment as a shorter name for it."""

    model_id: str

    def check(self, name: str | None) -> None:
        """Raise `ApiError` 404 for another model's name."""
        if name is not None and name not in (self.model_id, self.model_id.rsplit("/", 1)[-1]):
            message = f"The model '{name}' does not exist; this service has '{self.model_id}'."
            raise ApiError(404, message, code="model_not_found", param="model")


class Responses:
    """Starts responses, and knows the running ones of every tenant."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: PreTrainedTokenizerBase,
        turns: TurnBuilder,
        history: History,
        names: ModelNames,
        limits: ServiceLimits,
        metrics: Metrics,
    ) -> None:
        self.history = history
        self._engine = engine
        self._tokenizer = tokenizer
        self._turns = turns
        self._names = names
        self._limits = limits
        self.metrics = metrics
        self._running: dict[tuple[str, str], ResponseRun] = {}

    async def start(
        self, tenant: Tenant, body: CreateBody, socket_history: SocketHistory | None = None
    ) -> ResponseRun:
        """Check a body and hand its request to the engine.

        The caller must iterate `events` or call `close`. Raises `ApiError`, `RequestRefused`,
        `EngineUnavailable` or `StoreUnavailable`; nothing has happened then.
        """
        self._names.check(body.model)
        if body.top_logprobs and not body.wants_logprobs:
            message = f'\'top_logprobs\' needs "include": ["{LOGPROBS}"].'
            raise invalid_request(message, "top_logprobs")
        previous = await self._previous(tenant, body.previous_response_id, socket_history)
        prompt = await self._prompt(tenant, body.items, previous, body.instructions, body.prompt)
        info = self._engine.info
        max_tokens = output_budget(
            len(prompt.ids),
            body.max_output_tokens,
            self._limits.default_max_output_tokens,
            info,
            ("input", "max_output_tokens"),
        )
        response_id = f"resp_{secrets.token_hex(16)}"
        end_user = body.end_user or prompt.end_user
        request = engine_request(
            response_id,
            tenant,
            prompt,
            body,
            info,
            end_user=end_user,
            max_tokens=max_tokens,
            logprobs=body.top_logprobs or 0 if body.wants_logprobs else None,
        )
        generation = Generation(
            self._engine, request, self._tokenizer, body.stop_strings, self.metrics
        )
        generation.start()
        keeper = _Keeper(self.history, socket_history, tenant.id, end_user, prompt)
        resource = _resource(response_id, self._names.model_id, body)
        run = ResponseRun(resource, generation, keeper, self._running, self.metrics)
        self._running[tenant.id, response_id] = run
        return run

    def running(self, tenant: Tenant, response_id: str) -> ResponseRun | None:
        """A tenant's running response."""
        return self._running.get((tenant.id, response_id))

    async def retrieve(self, tenant: Tenant, response_id: str) -> bytes:
        """A tenant's response as JSON, running or stored. Raises `ApiError` 404."""
        run = self.running(tenant, response_id)
        if run is not None:
            return run.snapshot()
        turn = await self.history.load(tenant.id, response_id)
        if turn is None:
            message = f"There is no response '{response_id}'."
            raise ApiError(404, message, code="response_not_found", param="response_id")
        return turn.response

    async def conversation(
        self,
        tenant: Tenant,
        items: Sequence[Said],
        previous_response_id: str | None,
        instructions: str | None,
    ) -> Prompt:
        """The prompt of a conversation that is not answered but compacted."""
        previous = await self._previous(tenant, previous_response_id, None)
        return await self._prompt(tenant, items, previous, instructions, None)

    async def _previous(
        self, tenant: Tenant, response_id: str | None, socket_history: SocketHistory | None
    ) -> Turn | None:
        if response_id is None:
            return None
        turn = socket_history.load(response_id) if socket_history is not None else None
        turn = turn or await self.history.load(tenant.id, response_id)
        if turn is None or not turn.packed_ids:
            raise ApiError(
                400,
                f"Previous response with id '{response_id}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return turn

    async def _prompt(
        self,
        tenant: Tenant,
        items: Sequence[Said],
        previous: Turn | None,
        instructions: str | None,
        reference: PromptReference | None,
    ) -> Prompt:
        if previous is None:
            return await self._turns.begin(
                tenant, items, instructions=instructions, reference=reference, param="input"
            )
        return await self._turns.resume(
            tenant, previous, items, instructions=instructions, reference=reference
        )


@dataclass(frozen=True)
class _Keeper:
    """Where a finished response is kept: with the tenant, with its socket, or nowhere."""

    history: History
    socket_history: SocketHistory | None
    tenant_id: str
    end_user: str | None
    prompt: Prompt

    async def keep(self, resource: ResponseResource, output_ids: list[int]) -> None:
        failed = resource.status == "failed"
        turn = Turn(
            packed_ids=b"" if failed else pack_ids(self.prompt.ids + output_ids),
            shared_tokens=self.prompt.shared_tokens,
            system=self.prompt.system,
            end_user=self.end_user,
            response=encode_resource(resource),
        )
        if resource.store:
            await self.history.save(self.tenant_id, resource.id, turn)
        elif self.socket_history is not None:
            self.socket_history.save(resource.id, turn)


class ResponseRun:
    """A running response. Its events end with exactly one terminal event."""

    def __init__(
        self,
        resource: ResponseResource,
        generation: Generation,
        keeper: _Keeper,
        running: dict[tuple[str, str], ResponseRun],
        metrics: Metrics,
    ) -> None:
        self.resource = resource
        self._generation = generation
        self._keeper = keeper
        self._running = running
        self._metrics = metrics
        self._item_id = f"msg_{secrets.token_hex(16)}"
        self._logprobs: list[TokenLogprob] = []
        self._ended = asyncio.Event()

    def snapshot(self) -> bytes:
        """The response so far, as JSON."""
        return encode_resource(self.resource)

    async def cancel(self) -> None:
        """End the response here; its stream goes on to its terminal event."""
        await self._generation.cancel()

    async def settled(self, timeout_seconds: float) -> bytes:
        """The response as JSON after its end, or as it is when the reader of its events stalls."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._ended.wait()
        return self.snapshot()

    async def close(self) -> None:
        """Give up: free the engine's blocks and forget the run. Harmless after its end."""
        self._ended.set()
        self._running.pop((self._keeper.tenant_id, self.resource.id), None)
        await self._generation.close()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Every event of the stream in order, numbered from 0."""
        number = 0
        try:
            async with aclosing(self._unnumbered()) as events:
                async for event in events:
                    event.sequence_number = number
                    number += 1
                    yield event
        finally:
            await self.close()

    async def _unnumbered(self) -> AsyncGenerator[Event, None]:
        yield LifecycleEvent(type="response.created", response=self.resource)
        yield LifecycleEvent(type="response.in_progress", response=self.resource)
        begun = False
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                if not begun:
                    begun = True
                    for event in self._opening():
                        yield event
                yield self._delta(piece)
        if not begun and self._generation.outcome != "error":
            begun = True
            for event in self._opening():
                yield event
        if begun:
            for event in self._closing():
                yield event
        yield await self._terminal(begun)

    def _opening(self) -> list[Event]:
        item = OutputMessage(id=self._item_id, status="in_progress", content=[])
        return [
            ItemEvent(type="response.output_item.added", item=item),
            PartEvent(
                type="response.content_part.added", item_id=self._item_id, part=TextPart(text="")
            ),
        ]

    def _delta(self, piece: Piece) -> Event:
        self._logprobs.extend(piece.logprobs)
        return TextDelta(item_id=self._item_id, delta=piece.text, logprobs=piece.logprobs)

    def _closing(self) -> list[Event]:
        message = self._message()
        part = message.content[0]
        return [
            TextDone(item_id=self._item_id, text=part.text, logprobs=part.logprobs),
            PartEvent(type="response.content_part.done", item_id=self._item_id, part=part),
            ItemEvent(type="response.output_item.done", item=message),
        ]

    def _message(self) -> OutputMessage:
        part = TextPart(text=self._generation.text, logprobs=self._logprobs)
        whole = self._generation.outcome == "stop"
        return OutputMessage(
            id=self._item_id, status="completed" if whole else "incomplete", content=[part]
        )

    async def _terminal(self, begun: bool) -> Event:
        generation = self._generation
        assert generation.outcome is not None
        prompt, output = len(generation.request.prompt), len(generation.output_ids)
        status = _STATUS_OF_OUTCOME[generation.outcome]
        failed = status == "failed"
        self.resource = self.resource.model_copy(
            update={
                "status": status,
                "completed_at": int(time.time()) if status == "completed" else None,
                "output": [self._message()] if begun else [],
                "incomplete_details": IncompleteDetails() if status == "incomplete" else None,
                "error": ResponseFailure(message=generation.error or "") if failed else None,
                "usage": Usage(
                    input_tokens=prompt,
                    input_tokens_details=InputTokensDetails(cached_tokens=generation.cached_tokens),
                    output_tokens=output,
                    output_tokens_details=OutputTokensDetails(),
                    total_tokens=prompt + output,
                ),
            }
        )
        self._metrics.count_tokens(prompt, generation.cached_tokens, output)
        self._metrics.requests.labels("responses", status).inc()
        self._ended.set()
        await self._keeper.keep(self.resource, generation.output_ids)
        return LifecycleEvent(type=_EVENT_OF_STATUS[status], response=self.resource)


def _resource(response_id: str, model_id: str, body: CreateBody) -> ResponseResource:
    """A response as it begins."""
    return ResponseResource(
        id=response_id,
        created_at=int(time.time()),
        model=model_id,
        previous_response_id=body.previous_response_id,
        instructions=body.instructions,
        prompt=body.prompt.model_dump() if body.prompt else None,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tool_choice=body.tool_choice or "auto",
        temperature=or_default(body.temperature, 1.0),
        top_p=or_default(body.top_p, 1.0),
        presence_penalty=or_default(body.presence_penalty, 0.0),
        frequency_penalty=or_default(body.frequency_penalty, 0.0),
        top_logprobs=body.top_logprobs or 0,
        max_output_tokens=body.max_output_tokens,
        store=body.store is not False,
        metadata=body.metadata or {},
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )


def encode_resource(resource: ResponseResource) -> bytes:
    """A response as JSON."""
    return msgspec.json.encode(resource.model_dump())
