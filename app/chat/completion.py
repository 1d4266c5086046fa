"""One chat completion: whole, or as chunks."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import UNSET, UnsetType

from app.generation.generation import Generation
from app.generation.lines import Line, Output, OutputKind, Piece, output_kind
from app.observe.metrics import Metrics
from app.request.request import Candidates
from app.transport.server_sent_events import SSE_DONE, sse_event
from app.wire.chat import (
    AnswerMessage,
    ChatBody,
    ChatChunk,
    ChatCompletion,
    ChatStreamOptions,
    ChatUsage,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionTokensDetails,
    FinishReason,
    PromptTokensDetails,
    SentCall,
    SentCustomCall,
    SentFunction,
    SentTool,
)
from app.wire.errors import ApiError, internal_error
from app.wire.events import EncodedLogprob, encode_json, made_id, padding


class Completion:
    """A running chat completion; whoever holds it must run it or close the generation.

    One that is to be kept is given to `keep` at its end.
    """

    def __init__(
        self,
        body: ChatBody,
        candidates: Candidates,
        generation: Generation,
        model_id: str,
        metrics: Metrics,
        keep: Callable[[ChatCompletion], Awaitable[None]] | None = None,
    ) -> None:
        self._shows_logprobs = bool(body.logprobs)
        self._options = body.stream_options or ChatStreamOptions()
        self._tier = body.tier
        self._candidates = candidates
        self._generation = generation
        self._model_id = model_id
        self._metrics = metrics
        self._keep = keep
        self._created = int(time.time())
        self._noted: list[list[EncodedLogprob]] = [[] for _ in generation.lines]
        self._calls: Counter[int] = Counter()
        """Calls so far, by their lines."""

    async def whole(self) -> bytes:
        """The completion as JSON. Raises `ApiError` if it fails."""
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                self._note_logprobs(piece)
        self._finish()
        completion = self._completion()
        if self._keep is not None:
            await self._keep(completion)
        return encode_json(completion)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The completion as server-sent chunks; a failure is the last one, and carries an error.

        An answer's role comes when its text begins: whoever measures takes the first chunk for the
        first token.
        """
        silent = {line.index for line in self._generation.lines}
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                if self._keep is not None:
                    self._note_logprobs(piece)
                if piece.index in silent:
                    silent.remove(piece.index)
                    opening = {"role": "assistant", "content": ""}
                    yield self._chunk(ChunkChoice(index=piece.index, delta=opening))
                if not piece.is_empty:
                    yield self._chunk(self._growth(piece))
                if piece.end is not None:
                    reason = _finish_reason(self._generation.lines[piece.index])
                    yield self._chunk(
                        ChunkChoice(index=piece.index, delta={}, finish_reason=reason)
                    )
        try:
            self._finish()
        except ApiError as error:
            yield sse_event(encode_json(error.body()))
            return
        if self._keep is not None:
            await self._keep(self._completion())
        if self._options.include_usage:
            yield self._chunk(None)
        yield SSE_DONE

    def _note_logprobs(self, piece: Piece) -> None:
        """The whole answer will show them."""
        if self._shows_logprobs:
            self._noted[piece.index].extend(piece.logprobs)
            self._generation.keep(piece.logprobs)

    def _completion(self) -> ChatCompletion:
        """The answer, which has ended."""
        chosen = best(self._generation.lines, self._candidates)
        return ChatCompletion(
            id=self._generation.request.request_id,
            created=self._created,
            model=self._model_id,
            choices=[
                self._choice(index, line, self._noted[line.index])
                for index, line in enumerate(chosen)
            ],
            usage=usage_of([self._generation]),
            service_tier=self._tier,
            prompt_logprobs=self._prompt_logprobs(),
        )

    def _choice(self, index: int, line: Line, logprobs: list[EncodedLogprob]) -> Choice:
        calls = [_sent(call, self._call_id(line, number)) for number, call in enumerate(line.calls)]
        content = line.text or None if calls else line.text
        return Choice(
            index=index,
            message=AnswerMessage(
                content=content,
                reasoning_content=line.reasoning or UNSET,
                tool_calls=calls or UNSET,
            ),
            logprobs=self._logprobs(logprobs),
            finish_reason=_finish_reason(line),
            score=UNSET if line.score is None else line.score,
        )

    def _growth(self, piece: Piece) -> ChunkChoice:
        if piece.kind == "text":
            return ChunkChoice(
                index=piece.index,
                delta={"content": piece.text},
                logprobs=self._logprobs(piece.logprobs),
            )
        if piece.kind == "reasoning":
            return ChunkChoice(index=piece.index, delta={"reasoning_content": piece.text})
        kind, content = _WORDS[output_kind(piece.kind)]
        begins = piece.kind in ("call", "custom")
        self._calls[piece.index] += begins
        number = self._calls[piece.index] - 1
        call: dict[str, Any] = {"index": number, kind: {content: piece.text}}
        if begins:
            line = self._generation.lines[piece.index]
            call |= {"id": self._call_id(line, number), "type": kind}
            call[kind] = {"name": piece.text, content: ""}
        return ChunkChoice(index=piece.index, delta={"tool_calls": [call]})

    def _call_id(self, line: Line, number: int) -> str:
        return made_id("call_", self._generation.request.request_id, line.index, number)

    def _prompt_logprobs(self) -> list[EncodedLogprob | None] | UnsetType:
        """As vLLM tells them: nothing foretells the first token."""
        if self._generation.request.sampling.prompt_logprobs is None:
            return UNSET
        return [None, *self._generation.prompt_logprobs]

    def _logprobs(self, logprobs: list[EncodedLogprob]) -> ChoiceLogprobs | None:
        return ChoiceLogprobs(content=logprobs) if self._shows_logprobs else None

    def _chunk(self, choice: ChunkChoice | None) -> bytes:
        """One chunk; without a choice, the last one that carries the usage."""
        usage: ChatUsage | UnsetType | None = None if self._options.include_usage else UNSET
        if usage is None and (choice is None or self._options.continuous_usage_stats):
            usage = usage_of([self._generation])
        text = "" if choice is None else choice.delta.get("content", "")
        chunk = ChatChunk(
            id=self._generation.request.request_id,
            created=self._created,
            model=self._model_id,
            choices=[choice] if choice is not None else [],
            usage=usage,
            service_tier=self._tier,
            obfuscation=padding(text) if text and self._options.include_obfuscation else UNSET,
        )
        return sse_event(encode_json(chunk))

    def _finish(self) -> None:
        """Account for the end. Raises `ApiError` where it is a failure."""
        outcome = self._generation.outcome
        self._metrics.requests.labels("chat_completions", outcome).inc()
        if outcome not in ("stop", "length"):
            raise self._generation.failure or internal_error()


_WORDS: dict[OutputKind, tuple[str, str]] = {
    "call": ("function", "arguments"),
    "custom": ("custom", "input"),
}
"""What a call's field is named, and what in it goes on."""


def _sent(call: Output, call_id: str) -> SentCall | SentCustomCall:
    if call.kind == "custom":
        return SentCustomCall(id=call_id, custom=SentTool(name=call.name, input=call.text))
    return SentCall(id=call_id, function=SentFunction(name=call.name, arguments=call.text))


def usage_of(generations: Sequence[Generation]) -> ChatUsage:
    """The tokens that generations of one request have taken so far."""
    prompt = sum(len(one.request.prompt) for one in generations)
    output = sum(one.output_tokens for one in generations)
    return ChatUsage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(one.cached_tokens for one in generations),
            cache_write_tokens=sum(one.cache_write_tokens for one in generations),
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(one.reasoning_tokens for one in generations)
        ),
    )


def best(lines: Sequence[Line], candidates: Candidates) -> Sequence[Line]:
    """An answer's lines, in order. Ranked ones go by the mean log-probability of a token."""
    if not candidates.ranks:
        return lines
    return heapq.nlargest(candidates.num_choices, lines, key=lambda line: line.mean_logprob)


def _finish_reason(line: Line) -> FinishReason:
    assert line.end is not None
    called = line.end == "stop" and line.calls and not line.is_cut
    return "tool_calls" if called else line.end
