"""The responses of the Responses API: started, found again, resumed, retrieved."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from app.generate.admission import Gate
from app.generate.generation import Generation
from app.prompt.history import History, SocketHistory, Turn
from app.prompt.turns import (
    Prompt,
    Said,
    TurnBuilder,
    engine_request,
    or_default,
    output_budget,
    renewed,
)
from app.responses.answer import Answer
from app.responses.run import Keeper, ResponseRun, check_position
from app.responses.suspension import SuspendedRun
from app.transport.bounds import ServiceLimits
from app.upkeep.connections import Presence
from app.upkeep.draining import Draining
from app.upkeep.metrics import Metrics
from app.wire.errors import ApiError, invalid_request
from app.wire.events import ResponseResource, TokenLogprob
from app.wire.responses import LOGPROBS, CreateBody, PromptReference
from engine.api import EngineInfo, EngineRequest
from engine.client import EngineClient
from engine.validation import check_request
from tenants.records import Change, Principal, Tenant
from tenants.suspended import SuspendedResponses


@dataclass(frozen=True)
class ModelNames:
    """The served model's id, and its last path segment as a shorter name for it."""

    model_id: str

    def check(self, name: str | None) -> None:
        """Raise `ApiError` 404 for another model's name."""
        if name is not None and name not in (self.model_id, self.model_id.rsplit("/", 1)[-1]):
            message = f"The model '{name}' does not exist; this service has '{self.model_id}'."
            raise ApiError(404, message, code="model_not_found", param="model")


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What every response is made with."""

    engine: EngineClient
    tokenizer: PreTrainedTokenizerBase
    turns: TurnBuilder
    gate: Gate
    presence: Presence
    history: History
    suspended: SuspendedResponses
    draining: Draining
    names: ModelNames
    limits: ServiceLimits
    metrics: Metrics


class Responses:
    """Starts responses, and knows those of every tenant whose streams can still be read."""

    def __init__(self, workshop: Workshop) -> None:
        self._with = workshop
        self._runs: dict[tuple[str, str], ResponseRun] = {}
        self._resuming: dict[tuple[str, str], asyncio.Task[ResponseRun]] = {}

    @property
    def metrics(self) -> Metrics:
        """Where responses are counted."""
        return self._with.metrics

    async def start(
        self, principal: Principal, body: CreateBody, socket_history: SocketHistory | None = None
    ) -> ResponseRun:
        """Check a body and hand its request to the engine.

        Raises `ApiError`, `RequestRefused`, `EngineUnavailable` or `StoreUnavailable`; nothing has
        happened then.
        """
        shop, tenant = self._with, principal.tenant
        shop.draining.check()
        shop.names.check(body.model)
        if body.top_logprobs and not body.wants_logprobs:
            message = f'\'top_logprobs\' needs "include": ["{LOGPROBS}"].'
            raise invalid_request(message, "top_logprobs")
        previous = await self._previous(tenant, body.previous_response_id, socket_history)
        prompt = await self._prompt(principal, body.items, previous, body.instructions, body.prompt)
        info = shop.engine.info
        max_tokens = output_budget(
            len(prompt.ids),
            body.max_output_tokens,
            shop.limits.default_max_output_tokens,
            info,
            tenant.limits,
            ("input", "max_output_tokens"),
        )
        response_id = f"resp_{secrets.token_hex(16)}"
        end_user = body.end_user or prompt.end_user
        request = engine_request(
            response_id,
            principal,
            prompt,
            body,
            info,
            end_user=end_user,
            max_tokens=max_tokens,
            logprobs=body.top_logprobs or 0 if body.wants_logprobs else None,
        )
        generation = await self._generation(principal, request, body.stop_strings)
        answer = Answer(_resource(response_id, shop.names.model_id, body, tenant))
        keeper = self._keeper(tenant, prompt, end_user, info, socket_history)
        return self._run(principal, answer, generation, keeper)

    async def resume(self, principal: Principal, response_id: str, after: int) -> ResponseRun:
        """A response whose stream can still be read, or go on: `follow` it from `after`.

        Raises `ApiError` 404 for any other response, and 400 for an `after` that no event has had;
        also whatever `start` raises, where another process has begun it.
        """
        key = principal.tenant.id, response_id
        if key not in self._runs:
            if key not in self._resuming:
                self._with.draining.check()
                task = asyncio.create_task(self._go_on(principal, response_id, after))
                self._resuming[key] = task
                task.add_done_callback(lambda _: self._resuming.pop(key))
            # Another reader may wait for the same task.
            return await asyncio.shield(self._resuming[key])
        return self._runs[key]

    def notice(self, change: Change) -> None:
        """Take note of a change of the store."""
        self._with.history.notice(change)

    def running(self, tenant: Tenant, response_id: str) -> ResponseRun | None:
        """A tenant's running response."""
        run = self._runs.get((tenant.id, response_id))
        return None if run is None or run.ended else run

    async def retrieve(self, tenant: Tenant, response_id: str) -> bytes:
        """A tenant's response as JSON, running or stored. Raises `ApiError` 404."""
        run = self.running(tenant, response_id)
        if run is not None:
            return run.snapshot()
        turn = await self._with.history.load(tenant.id, response_id)
        if turn is None:
            raise _not_found(response_id)
        return turn.response

    async def conversation(
        self,
        principal: Principal,
        items: Sequence[Said],
        previous_response_id: str | None,
        instructions: str | None,
    ) -> Prompt:
        """The prompt of a conversation that is not answered but compacted."""
        previous = await self._previous(principal.tenant, previous_response_id, None)
        return await self._prompt(principal, items, previous, instructions, None)

    async def suspend(self) -> None:
        """End every running response, so that it can go on after a restart."""
        running = [run for run in self._runs.values() if not run.ended]
        for run in running:
            run.suspend()
        await asyncio.gather(*(run.settled() for run in running))

    async def close(self) -> None:
        """Forget every response: the process ends."""
        await asyncio.gather(*(run.close() for run in list(self._runs.values())))
        self._runs.clear()

    async def _go_on(self, principal: Principal, response_id: str, after: int) -> ResponseRun:
        """Take over a response that was suspended; it stays so where that fails."""
        shop, tenant = self._with, principal.tenant
        info = shop.engine.info
        blob = await shop.suspended.take(tenant.id, response_id)
        if blob is None:
            raise _not_found(response_id)
        try:
            kept = SuspendedRun.decode(blob)
            if kept.engine != info.hash_extras:
                raise _not_found(response_id)
            check_position(after, len(kept.events))
            request = renewed(kept.request, principal, kept.prompt)
            check_request(request, info)
            answer, held = kept.answer, kept.held
            generation = await self._generation(
                principal, request, kept.stop, cached_tokens=kept.cached_tokens, held=held
            )
        except BaseException:
            ttl_seconds = shop.limits.response_ttl_seconds
            await shop.suspended.save(tenant.id, response_id, blob, ttl_seconds)
            raise
        keeper = self._keeper(tenant, kept.prompt, kept.end_user, info, None)
        return self._run(principal, answer, generation, keeper, kept.events)

    async def _generation(
        self,
        principal: Principal,
        request: EngineRequest,
        stop: Sequence[str],
        *,
        cached_tokens: int = 0,
        held: Sequence[TokenLogprob] = (),
    ) -> Generation:
        """An admitted request; to be started before anything else is awaited."""
        shop = self._with
        ticket = await shop.gate.admit(principal)
        await ticket.reserve(request)
        return Generation(
            shop.engine,
            request,
            shop.tokenizer,
            stop,
            shop.metrics,
            ticket,
            cached_tokens=cached_tokens,
            held=held,
        )

    def _keeper(
        self,
        tenant: Tenant,
        prompt: Prompt,
        end_user: str | None,
        info: EngineInfo,
        socket_history: SocketHistory | None,
    ) -> Keeper:
        return Keeper(
            history=self._with.history,
            socket_history=socket_history,
            suspended=self._with.suspended,
            suspended_ttl_seconds=self._with.limits.response_ttl_seconds,
            tenant_id=tenant.id,
            end_user=end_user,
            prompt=prompt,
            engine=info.hash_extras,
        )

    def _run(
        self,
        principal: Principal,
        answer: Answer,
        generation: Generation,
        keeper: Keeper,
        events: Sequence[bytes | None] = (),
    ) -> ResponseRun:
        key = principal.tenant.id, answer.resource.id
        run = ResponseRun(
            principal,
            answer,
            generation,
            keeper,
            self._with.presence,
            self._with.metrics,
            self._with.limits.resume_grace_seconds,
            forget=lambda: self._forget(key),
            events=events,
        )
        self._runs[key] = run
        run.start()
        return run

    def _forget(self, key: tuple[str, str]) -> None:
        del self._runs[key]

    async def _previous(
        self, tenant: Tenant, response_id: str | None, socket_history: SocketHistory | None
    ) -> Turn | None:
        if response_id is None:
            return None
        turn = socket_history.load(response_id) if socket_history is not None else None
        turn = turn or await self._with.history.load(tenant.id, response_id)
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
        principal: Principal,
        items: Sequence[Said],
        previous: Turn | None,
        instructions: str | None,
        reference: PromptReference | None,
    ) -> Prompt:
        turns = self._with.turns
        if previous is None:
            return await turns.begin(
                principal, items, instructions=instructions, reference=reference, param="input"
            )
        return await turns.resume(
            principal, previous, items, instructions=instructions, reference=reference
        )


def _not_found(response_id: str) -> ApiError:
    message = f"There is no response '{response_id}'."
    return ApiError(404, message, code="response_not_found", param="response_id")


def _resource(
    response_id: str, model_id: str, body: CreateBody, tenant: Tenant
) -> ResponseResource:
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
        # A tenant that may not leave prompts in memory does not want its answers kept either.
        store=tenant.cache == "on" if body.store is None else body.store,
        metadata=body.metadata or {},
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )
