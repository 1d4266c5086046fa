"""The prompts of one completions request, run together: a few at once, all or none answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence

from msgspec import UNSET

from app.completions.answer import Answer
from app.completions.parse import generation_requests
from app.context import Service
from app.generate.request import GenerationRequest
from app.transport.server_sent_events import SSE_DONE, sse_event
from app.wire.chat import ChatUsage, PromptTokensDetails
from app.wire.completions import Completion, CompletionBody, CompletionChoice
from app.wire.errors import ApiError
from app.wire.events import encode_json
from tenants.records import Principal

_AT_ONCE = 16
"""Prompts of a request that run side by side: each is one of the tenant's streams."""


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
        places = asyncio.Semaphore(_AT_ONCE)

        async def answer(index: int) -> list[CompletionChoice]:
            async with places:
                begun = await self._begin(index)
                try:
                    return await begun.choices()
                finally:
                    await begun.generation.close()

        tasks = [asyncio.create_task(answer(index)) for index in range(len(self._requests))]
        try:
            choices = [choice for found in await asyncio.gather(*tasks) for choice in found]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._count(self._answers)
        return encode_json(self._completion(choices, self._usage()))

    async def begin(self) -> Answer:
        """Begin the answer to the only prompt, to be streamed."""
        return await self._begin(0)

    async def chunks(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The completion as server-sent chunks; a failure is the last one, and carries an error."""
        options = self._body.stream_options
        reports = options is not None and bool(options.include_usage)
        counts_on = reports and options is not None and bool(options.continuous_usage_stats)
        async for choice in answer.growth():
            usage = self._usage() if counts_on else None
            chunk = self._completion([choice], usage if reports else UNSET)
            yield sse_event(encode_json(chunk))
        self._count([answer])
        try:
            answer.check()
        except ApiError as error:
            yield sse_event(encode_json(error.body()))
            return
        if reports:
            yield sse_event(encode_json(self._completion([], self._usage())))
        yield SSE_DONE

    async def _begin(self, index: int) -> Answer:
        request = self._requests[index]
        generation = await self._service.generations.begin(self._principal, request)
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
        if isinstance(request.raw, str) and not request.scores:
            return request.raw, first
        return await template.text_of(tenant, ids, request.names.items), first

    def _completion(
        self, choices: list[CompletionChoice], usage: ChatUsage | object | None
    ) -> Completion:
        return Completion(
            id=self._requests[0].id,
            created=self._created,
            model=self._service.names.model_id,
            choices=choices,
            usage=usage,  # type: ignore[arg-type]
        )

    def _usage(self) -> ChatUsage:
        generations = [answer.generation for answer in self._answers]
        prompt = sum(one.prompt_tokens for one in generations)
        output = sum(one.output_tokens for one in generations)
        cached = sum(one.cached_tokens for one in generations)
        return ChatUsage(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )

    def _count(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            outcome = answer.generation.outcome or "cancelled"
            self._service.metrics.requests.labels("completions", outcome).inc()
