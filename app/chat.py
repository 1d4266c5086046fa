"""One chat completion: whole, or as chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from app.context import Service
from app.errors import ApiError, internal_error, invalid_request
from app.generation import Generation, Piece
from app.turns import engine_request, output_budget
from app.wire_chat import (
    AnswerMessage,
    ChatBody,
    ChatChunk,
    ChatCompletion,
    ChatUsage,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    FinishReason,
    PromptTokensDetails,
)
from app.wire_events import TokenLogprob
from tenants.records import Principal


async def start_completion(service: Service, principal: Principal, body: ChatBody) -> Completion:
    """Check a body and hand its request to the engine.

    The caller must run the completion or call `close`. Raises `ApiError`, `RequestRefused` or
    `EngineUnavailable`; nothing has happened then.
    """
    service.draining.check()
    service.names.check(body.model)
    maximum_param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid_request("Give 'max_tokens' or 'max_completion_tokens'.", "max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid_request("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise invalid_request("'stream_options' needs 'stream': true.", "stream_options")
    prompt = await service.turns.begin(principal, body.messages, param="messages")
    info = service.engine.info
    max_tokens = output_budget(
        len(prompt.ids),
        body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        service.limits.default_max_output_tokens,
        info,
        principal.tenant.limits,
        ("messages", maximum_param),
    )
    completion_id = f"chatcmpl-{secrets.token_hex(16)}"
    request = engine_request(
        completion_id,
        principal,
        prompt,
        body,
        info,
        end_user=body.end_user,
        max_tokens=max_tokens,
        logprobs=body.top_logprobs or 0 if body.logprobs else None,
    )
    ticket = await service.gate.admit(principal, request)
    generation = Generation(
        service.engine, request, service.tokenizer, body.stop_strings, service.metrics, ticket
    )
    generation.start()
    return Completion(service, principal, body, generation)


class Completion:
    """A running chat completion."""

    def __init__(
        self, service: Service, principal: Principal, body: ChatBody, generation: Generation
    ) -> None:
        self._service = service
        self._principal = principal
        self._body = body
        self._generation = generation
        self._created = int(time.time())

    @property
    def headers(self) -> Mapping[str, str]:
        """What goes with its answer."""
        return self._generation.ticket.headers

    async def close(self) -> None:
        """Give the engine's blocks back; harmless after the end."""
        await self._generation.close()

    async def end(self, error: ApiError) -> None:
        """End it here, with `error` in place of the rest."""
        self._generation.fail(error)

    async def whole(self) -> bytes:
        """The completion as JSON. Raises `ApiError` if it fails."""
        logprobs: list[TokenLogprob] = []
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                logprobs.extend(piece.logprobs)
        reason = self._finish()
        choice = Choice(
            message=AnswerMessage(content=self._generation.text),
            logprobs=ChoiceLogprobs(content=logprobs) if self._body.logprobs else None,
            finish_reason=reason,
        )
        completion = ChatCompletion(
            id=self._generation.request.request_id,
            created=self._created,
            model=self._service.names.model_id,
            choices=[choice],
            usage=self._usage(),
        )
        return msgspec.json.encode(completion.model_dump())

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The completion as server-sent chunks; a failure is the last one, and carries an error."""
        yield self._chunk(ChunkChoice(delta={"role": "assistant", "content": ""}))
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                yield self._chunk(self._piece(piece))
        try:
            reason = self._finish()
        except ApiError as error:
            yield _data(msgspec.json.encode(error.body()))
            return
        yield self._chunk(ChunkChoice(delta={}, finish_reason=reason))
        if self._reports_usage:
            yield self._chunk(None)
        yield _data(b"[DONE]")

    async def _pieces(self) -> AsyncGenerator[Piece, None]:
        with self._service.presence.stream(self._principal, self):
            async with aclosing(self._generation.pieces()) as pieces:
                async for piece in pieces:
                    yield piece

    @property
    def _reports_usage(self) -> bool:
        options = self._body.stream_options
        return options is not None and bool(options.include_usage)

    def _piece(self, piece: Piece) -> ChunkChoice:
        logprobs = ChoiceLogprobs(content=piece.logprobs) if self._body.logprobs else None
        return ChunkChoice(delta={"content": piece.text}, logprobs=logprobs)

    def _chunk(self, choice: ChunkChoice | None) -> bytes:
        """One chunk; without a choice, the last one that carries the usage."""
        chunk = ChatChunk(
            id=self._generation.request.request_id,
            created=self._created,
            model=self._service.names.model_id,
            choices=[choice] if choice is not None else [],
            usage=self._usage() if choice is None else None,
        )
        excluded = None if self._reports_usage else {"usage"}
        return _data(msgspec.json.encode(chunk.model_dump(exclude=excluded)))

    def _finish(self) -> FinishReason:
        """Account for the end. Raises `ApiError` where it is a failure."""
        generation = self._generation
        self._service.metrics.count_tokens(
            len(generation.request.prompt), generation.cached_tokens, len(generation.output_ids)
        )
        outcome = generation.outcome
        self._service.metrics.requests.labels("chat_completions", outcome).inc()
        if outcome == "stop" or outcome == "length":
            return outcome
        raise generation.failure or internal_error()

    def _usage(self) -> ChatUsage:
        prompt = len(self._generation.request.prompt)
        output = len(self._generation.output_ids)
        return ChatUsage(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._generation.cached_tokens),
        )


def _data(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"
