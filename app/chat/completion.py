"""One chat completion: whole, or as chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from msgspec import UNSET

from app.chat.choices import Decoding
from app.context import Service
from app.generate.generation import Generation
from app.generate.lines import Line, Piece
from app.prompt.turns import engine_request, output_budget
from app.wire.chat import (
    AnswerMessage,
    ChatBody,
    ChatChunk,
    ChatCompletion,
    ChatUsage,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    PromptTokensDetails,
)
from app.wire.errors import ApiError, internal_error, invalid_request
from app.wire.events import TokenLogprob, encode_json
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
    info = service.engine.info
    decoding = Decoding.of(body, info.max_running_sequences)
    prompt = await service.turns.begin(principal, body.messages, param="messages")
    max_tokens = output_budget(
        len(prompt.ids),
        body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        service.limits.default_max_output_tokens,
        info,
        principal.tenant.limits,
        ("messages", maximum_param),
        sequences=decoding.width,
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
        logprobs=body.top_logprobs or 0 if body.logprobs or decoding.ranks else None,
        num_sequences=decoding.num_sequences,
        beam=decoding.beam,
    )
    ticket = await service.gate.admit(principal)
    await ticket.reserve(request)
    generation = Generation(
        service.engine, request, service.tokenizer, body.stop_strings, service.metrics, ticket
    )
    generation.start()
    return Completion(service, principal, body, decoding, generation)


class Completion:
    """A running chat completion."""

    def __init__(
        self,
        service: Service,
        principal: Principal,
        body: ChatBody,
        decoding: Decoding,
        generation: Generation,
    ) -> None:
        self._service = service
        self._principal = principal
        self._body = body
        self._decoding = decoding
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
        logprobs: list[list[TokenLogprob]] = [[] for _ in self._generation.lines]
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                logprobs[piece.index].extend(piece.logprobs)
        self._finish()
        chosen = self._decoding.chosen(self._generation.lines)
        completion = ChatCompletion(
            id=self._generation.request.request_id,
            created=self._created,
            model=self._service.names.model_id,
            choices=[
                self._choice(index, line, logprobs[line.index]) for index, line in enumerate(chosen)
            ],
            usage=self._usage(),
        )
        return encode_json(completion)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The completion as server-sent chunks; a failure is the last one, and carries an error."""
        for line in self._generation.lines:
            opening = {"role": "assistant", "content": ""}
            yield self._chunk(ChunkChoice(index=line.index, delta=opening))
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                if not piece.is_empty:
                    yield self._chunk(self._growth(piece))
                if piece.end is not None:
                    end = ChunkChoice(index=piece.index, delta={}, finish_reason=piece.end)
                    yield self._chunk(end)
        try:
            self._finish()
        except ApiError as error:
            yield _data(encode_json(error.body()))
            return
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

    def _choice(self, index: int, line: Line, logprobs: list[TokenLogprob]) -> Choice:
        assert line.end is not None
        return Choice(
            index=index,
            message=AnswerMessage(content=line.text),
            logprobs=self._logprobs(logprobs),
            finish_reason=line.end,
            score=UNSET if line.score is None else line.score,
        )

    def _growth(self, piece: Piece) -> ChunkChoice:
        return ChunkChoice(
            index=piece.index,
            delta={"content": piece.text},
            logprobs=self._logprobs(piece.logprobs),
        )

    def _logprobs(self, logprobs: list[TokenLogprob]) -> ChoiceLogprobs | None:
        return ChoiceLogprobs(content=logprobs) if self._body.logprobs else None

    def _chunk(self, choice: ChunkChoice | None) -> bytes:
        """One chunk; without a choice, the last one that carries the usage."""
        chunk = ChatChunk(
            id=self._generation.request.request_id,
            created=self._created,
            model=self._service.names.model_id,
            choices=[choice] if choice is not None else [],
            usage=UNSET if not self._reports_usage else self._usage() if choice is None else None,
        )
        return _data(encode_json(chunk))

    def _finish(self) -> None:
        """Account for the end. Raises `ApiError` where it is a failure."""
        outcome = self._generation.outcome
        self._service.metrics.requests.labels("chat_completions", outcome).inc()
        if outcome not in ("stop", "length"):
            raise self._generation.failure or internal_error()

    def _usage(self) -> ChatUsage:
        prompt, output = len(self._generation.request.prompt), self._generation.output_tokens
        return ChatUsage(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._generation.cached_tokens),
        )


def _data(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"
