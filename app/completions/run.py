"""The prompts of one completions request, run together: a few at once, all or none answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET, UnsetType

from app.chat.completion import usage_of
from app.completions.answer import Answer
from app.completions.parse import generation_requests
from app.context import Service
from app.generation.begin import Ready
from app.generation.engine_request import MAX_LOGPROBS
from app.request.request import GenerationRequest
from app.transport.server_sent_events import SSE_DONE, sse_event
from app.wire.chat import ChatStreamOptions, ChatUsage
from app.wire.completions import Completion, CompletionBody, CompletionChoice
from app.wire.errors import ApiError, invalid_request
from app.wire.events import encode_json
from tenants.records import Principal

_AT_ONCE = 16
"""Prompts of a request that run side by side."""
_INLINE_BYTES = 1 << 16
"""Of log-probabilities that are made JSON on the event loop, in less than a millisecond or two."""


class CompletionRun:
    """A request's answers. Raises `ApiError` for what cannot go together."""

    def __init__(self, service: Service, principal: Principal, body: CompletionBody) -> None:
        self.headers: Mapping[str, str] = {}
        self._service = service
        self._principal = principal
        self._body = body
        self._requests = generation_requests(body)
        self._created = int(time.time())
        self._answers: list[Answer] = []

    async def whole(self) -> bytes:
        """The completion as JSON. Raises what `Generations.begin` raises, and where one fails."""
        await self._check_logprobs()
        try:
            answers = await self._read()

            def encoded() -> bytes:
                choices = [choice for answer in answers for choice in answer.choices()]
                return encode_json(self._completion(choices, self._usage()))

            if sum(answer.generation.kept_bytes for answer in answers) <= _INLINE_BYTES:
                return encoded()
            return await self._service.workers.run(self._principal.tenant.id, encoded)
        finally:
            for answer in self._answers:
                answer.generation.let_go()

    async def begin(self) -> Answer:
        """Begin the answer to the only prompt, to be streamed."""
        (ready,) = await self._service.generations.prepare(self._principal, self._requests)
        return await self._begin(0, ready)

    async def chunks(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The completion as server-sent chunks; a failure is the last one, and carries an error."""
        options = self._body.stream_options or ChatStreamOptions()
        async for choice in answer.growth():
            usage: ChatUsage | UnsetType | None = None if options.include_usage else UNSET
            if usage is None and options.continuous_usage_stats:
                usage = self._usage()
            yield sse_event(encode_json(self._completion([choice], usage)))
        self._count([answer])
        try:
            answer.check()
        except ApiError as error:
            yield sse_event(encode_json(error.body()))
            return
        if options.include_usage:
            yield sse_event(encode_json(self._completion([], self._usage())))
        yield SSE_DONE

    async def _check_logprobs(self) -> None:
        """Raises `ApiError` where the answers to all prompts have more log-probabilities together
        than one may have, before any of them costs a step.
        """
        if len(self._requests) == 1 or self._body.logprobs is self._body.scored is None:
            return
        if self._body.scored is not None:
            await self._tokenize()
        told = sum(map(self._num_logprobs, self._requests))
        if told > MAX_LOGPROBS:
            message = f"All answers may have {MAX_LOGPROBS} log-probabilities together"
            raise invalid_request(f"{message}; {told} were asked for.", "prompt")

    def _num_logprobs(self, request: GenerationRequest) -> int:
        """Those of its prompt and its answers, at most."""
        body, told = self._body, 0
        if body.scored is not None:
            told += len(request.raw or ()) * (1 + body.scored)
        if body.logprobs is not None:
            told += request.candidates.width * (request.max_tokens or 0) * (1 + body.logprobs)
        return told

    async def _tokenize(self) -> None:
        """Have all prompts as ids. Texts count as one request more: much may have to be read."""
        texts = [index for index, one in enumerate(self._requests) if isinstance(one.raw, str)]
        if not texts:
            return
        template, tenant = self._service.template, self._principal.tenant.id
        async with self._service.generations.counted(self._principal):
            for index in texts:
                request = self._requests[index]
                ids = await template.text_ids(tenant, str(request.raw), request.names.items)
                self._requests[index] = replace(request, raw=ids)
                await asyncio.sleep(0)  # short ones are read on the event loop

    async def _read(self) -> list[Answer]:
        """The answers to all prompts, read to their ends."""
        places = asyncio.Semaphore(_AT_ONCE)
        # Admitted as one: none costs a step that another's refusal would lose.
        prepared = await self._service.generations.prepare(self._principal, self._requests)

        async def answer(index: int) -> Answer:
            async with places:
                begun = await self._begin(index, prepared[index])
                try:
                    await begun.read()
                finally:
                    await begun.generation.close()
                return begun

        tasks = [asyncio.create_task(answer(index)) for index in range(len(self._requests))]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for ready in prepared:
                await ready.release()
            self._count(self._answers)

    async def _begin(self, index: int, ready: Ready) -> Answer:
        request, generation = self._requests[index], await ready.generation()
        self.headers = generation.ticket.headers
        try:
            text, first = await self._prompt_text(request, generation.prompt.ids)
        except BaseException:
            await generation.close()
            raise
        first_choice = index * request.candidates.num_choices
        answer = Answer(self._body, request.candidates, generation, text, first, first_choice)
        self._answers.append(answer)
        return answer

    async def _prompt_text(self, request: GenerationRequest, ids: Sequence[int]) -> tuple[str, str]:
        """What is echoed: the prompt as a text, and its first token."""
        if not self._body.echo:
            return "", ""
        template, tenant = self._service.template, self._principal.tenant.id
        first = await template.text_of(tenant, ids[:1], request.names.items)
        if isinstance(request.raw, str) and not self._body.echoes_scores:
            return request.raw, first
        return await template.text_of(tenant, ids, request.names.items), first

    def _completion(
        self, choices: list[CompletionChoice], usage: ChatUsage | UnsetType | None
    ) -> Completion:
        return Completion(
            id=self._requests[0].id,
            created=self._created,
            model=self._service.names.shown(self._requests[0].model),
            choices=choices,
            usage=usage,
        )

    def _usage(self) -> ChatUsage:
        return usage_of([answer.generation for answer in self._answers])

    def _count(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            outcome = answer.generation.outcome or "cancelled"
            self._service.metrics.requests.labels("completions", outcome).inc()
