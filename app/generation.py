"""One engine request seen as text: pieces to show, and at the end why it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, cast

from transformers import PreTrainedTokenizerBase

from app.logprobs import TokenTexts
from app.metrics import Metrics
from app.wire_events import TokenLogprob
from engine.client import EngineClient, EngineError
from engine.detokenizer import Detokenizer
from engine.request import EngineRequest, TokenDelta

Outcome = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Piece:
    """Text that became safe to show, with the log-probabilities of its tokens where asked for."""

    text: str
    logprobs: list[TokenLogprob] = field(default_factory=list)


class Generation:
    """Runs one `EngineRequest`. Whatever ends it, `close` gives the engine's blocks back.

    `outcome` is set once `pieces` has ended; `output_ids`, `cached_tokens` and `text` grow until
    then. `error` explains the outcome "error".
    """

    def __init__(
        self,
        engine: EngineClient,
        request: EngineRequest,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str],
        metrics: Metrics,
    ) -> None:
        self.request = request
        self.output_ids: list[int] = []
        self.cached_tokens = 0
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self._engine = engine
        self._metrics = metrics
        self._texts = TokenTexts(tokenizer)
        self._detokenizer = Detokenizer(tokenizer, stop)
        self._one_by_one = bool(stop) or request.sampling.logprobs is not None
        self._pending: list[TokenLogprob] = []
        self._cancelled = False
        self._deltas: AsyncGenerator[TokenDelta, None] | None = None
        self._next: asyncio.Task[TokenDelta] | None = None
        self._started = perf_counter()
        self._last_token: float | None = None

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return self._detokenizer.text

    def start(self) -> None:
        """Hand the request to the engine. The caller must iterate `pieces` or call `close`."""
        # The protocol promises `aclose` in words; every engine implements it as a generator.
        deltas = self._engine.generate(self.request)
        self._deltas = cast("AsyncGenerator[TokenDelta, None]", deltas)
        self._metrics.streams_running.inc()
        self._next = self._fetch(self._deltas)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The answer's text as it comes; `start` goes first.

        Engine errors set `outcome`, since the stream has begun.
        """
        assert self._deltas is not None
        assert self._next is not None
        try:
            while self.outcome is None:
                delta = await self._next_delta(self._next)
                for piece in self._take(delta):
                    yield piece
                if delta.finish_reason is None and self.outcome is None:
                    self._next = self._fetch(self._deltas)
            rest = self._detokenizer.finish()
            if rest or self._pending:
                yield self._release(rest)
        finally:
            await self.close()

    async def cancel(self) -> None:
        """End the answer here; its stream then ends with outcome "cancelled"."""
        self._cancelled = True
        await self._engine.abort(self.request.request_id)

    async def close(self) -> None:
        """Give the request back to the engine, finished or not. May be called twice."""
        deltas, self._deltas = self._deltas, None
        if deltas is None:
            return
        self._metrics.streams_running.dec()
        if self._next is not None and not self._next.done():
            self._next.cancel()
            await asyncio.wait({self._next})
        await deltas.aclose()

    async def _next_delta(self, pending: asyncio.Task[TokenDelta]) -> TokenDelta:
        try:
            return await pending
        except EngineError as error:
            return TokenDelta(
                request_id=self.request.request_id, finish_reason="error", error=str(error)
            )

    def _fetch(self, deltas: AsyncGenerator[TokenDelta, None]) -> asyncio.Task[TokenDelta]:
        async def fetch() -> TokenDelta:
            if self._cancelled:
                # The engine may not know the request yet, and ignores aborts of unknown ones.
                return TokenDelta(request_id=self.request.request_id, finish_reason="aborted")
            try:
                return await anext(deltas)
            except StopAsyncIteration:
                return TokenDelta(
                    request_id=self.request.request_id,
                    finish_reason="error",
                    error="the engine ended the request without a reason",
                )

        return asyncio.create_task(fetch())

    def _take(self, delta: TokenDelta) -> list[Piece]:
        """Account for a delta; returns what it lets us show, and sets `outcome` at the end."""
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        if delta.token_ids:
            self._observe_latency(len(delta.token_ids))
        step = 1 if self._one_by_one else max(1, len(delta.token_ids))
        shown: list[Piece] = []
        for start in range(0, len(delta.token_ids), step):
            ids = delta.token_ids[start : start + step]
            self.output_ids.extend(ids)
            if delta.logprobs is not None and self.request.sampling.logprobs is not None:
                self._note_logprobs(ids[0], delta, start)
            text = self._detokenizer.push(ids)
            if text:
                shown.append(self._release(text))
            if self._detokenizer.stopped:
                self._pending.clear()
                self.outcome = "stop"
                return shown
        self._finish(delta)
        return shown

    def _note_logprobs(self, token_id: int, delta: TokenDelta, index: int) -> None:
        stops = self.request.sampling.stop_token_ids
        last = index == len(delta.token_ids) - 1
        if delta.finish_reason == "stop" and last and token_id in stops:
            return
        assert delta.logprobs is not None
        top = self.request.sampling.logprobs or 0
        self._pending.append(self._texts.describe(token_id, delta.logprobs[index], top))

    def _release(self, text: str) -> Piece:
        piece = Piece(text, self._pending)
        self._pending = []
        return piece

    def _finish(self, delta: TokenDelta) -> None:
        if delta.finish_reason == "stop" or delta.finish_reason == "length":
            self.outcome = delta.finish_reason
        elif delta.finish_reason == "aborted" and self._cancelled:
            self.outcome = "cancelled"
        elif delta.finish_reason is not None:
            self.outcome = "error"
            self.error = delta.error or "The engine stopped while the response was running."

    def _observe_latency(self, tokens: int) -> None:
        now = perf_counter()
        if self._last_token is None:
            self._metrics.time_to_first_token.observe(now - self._started)
            tokens -= 1
            since = now
        else:
            since = self._last_token
        for _ in range(tokens):
            self._metrics.inter_token_latency.observe((now - since) / max(1, tokens))
        self._last_token = now
