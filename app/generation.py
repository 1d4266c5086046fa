"""One engine request seen as text: pieces to show, and at the end why it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, cast

from transformers import PreTrainedTokenizerBase

from app.admission import Ticket
from app.draining import shutting_down
from app.errors import ApiError
from app.logprobs import TokenTexts
from app.metrics import Metrics
from app.wire_events import TokenLogprob
from engine.client import EngineClient, EngineError
from engine.detokenizer import Detokenizer
from engine.request import EngineRequest, TokenDelta

Outcome = Literal["stop", "length", "cancelled", "suspended", "error"]


@dataclass(frozen=True)
class Piece:
    """Text that became safe to show, with the log-probabilities of its tokens where asked for."""

    text: str
    logprobs: list[TokenLogprob] = field(default_factory=list)


class Generation:
    """Runs one `EngineRequest`. Whatever ends it, the engine's blocks are given back, and `ticket`
    is settled.

    `outcome` is set once it has ended; `output_ids`, `cached_tokens` and `text` grow until then.
    `failure` explains the outcome "error". A request with `generated` tokens goes on behind them:
    `cached_tokens` and `held` are then what an earlier generation was left with.
    """

    def __init__(
        self,
        engine: EngineClient,
        request: EngineRequest,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str],
        metrics: Metrics,
        ticket: Ticket,
        *,
        cached_tokens: int = 0,
        held: Sequence[TokenLogprob] = (),
    ) -> None:
        self.request = request
        self.output_ids = list(request.generated_by(0))
        self.cached_tokens = cached_tokens
        self.outcome: Outcome | None = None
        self.failure: ApiError | None = None
        self.stop = stop
        self.ticket = ticket
        self._engine = engine
        self._metrics = metrics
        self._texts = TokenTexts(tokenizer)
        self._detokenizer = Detokenizer(tokenizer, stop)
        self._detokenizer.push(self.output_ids)
        self._one_by_one = bool(stop) or request.sampling.logprobs is not None
        self._held = list(held)
        self._deltas: AsyncGenerator[TokenDelta, None] | None = None
        self._waiting: asyncio.Timeout | None = None
        self._started = perf_counter()
        self._last_token: float | None = None

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return self._detokenizer.text

    @property
    def held(self) -> list[TokenLogprob]:
        """The log-probabilities of tokens whose text is not safe to show yet."""
        return self._held

    def start(self) -> None:
        """Begin. The caller must iterate `pieces` or call `close`."""
        # The protocol promises `aclose` in words; every engine implements it as a generator.
        deltas = self._engine.generate(self.request)
        self._deltas = cast("AsyncGenerator[TokenDelta, None]", deltas)
        self._metrics.streams_running.inc()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The answer's text as it comes; `start` goes first.

        Errors of the engine set `outcome`, since the stream has begun. What a suspended generation
        holds back stays so.
        """
        try:
            while self.outcome is None:
                delta = await self._next_delta()
                if delta is not None:
                    for piece in self._take(delta):
                        yield piece
            if self.outcome != "suspended":
                for piece in self.rest():
                    yield piece
        finally:
            await self.close()

    def rest(self) -> list[Piece]:
        """What is held back, given that no more tokens will come. Harmless when repeated."""
        rest = self._detokenizer.finish()
        return [self._release(rest)] if rest or self._held else []

    def cancel(self) -> None:
        """End the answer here, with outcome "cancelled"; harmless after its end."""
        self._stop("cancelled")

    def suspend(self) -> None:
        """End it here, with outcome "suspended", so that another generation can go on behind it."""
        self._stop("suspended")

    def fail(self, error: ApiError) -> None:
        """End it here, with outcome "error"; harmless after its end."""
        self._stop("error", error)

    async def close(self) -> None:
        """Give the request back to the engine, finished or not, and settle. May be called twice."""
        deltas, self._deltas = self._deltas, None
        if deltas is None:
            return
        self._metrics.streams_running.dec()
        try:
            await deltas.aclose()
        finally:
            await self._settle()

    def _stop(self, outcome: Outcome, failure: ApiError | None = None) -> None:
        if self.outcome is None:
            self.outcome, self.failure = outcome, failure
            if self._waiting is not None:
                self._waiting.reschedule(asyncio.get_running_loop().time())

    async def _settle(self) -> None:
        """Account for the tokens; an earlier generation has paid for its own and the prompt."""
        output = len(self.output_ids) - self.request.num_generated
        first = output > 0 and not self.request.num_generated
        prompt = len(self.request.prompt) if first else 0
        cached = self.cached_tokens if first else 0
        self._metrics.count_tokens(prompt, cached, output)
        await self.ticket.settle(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)

    async def _next_delta(self) -> TokenDelta | None:
        """The next delta, or `None` once the generation was ended from outside."""
        assert self._deltas is not None
        request_id = self.request.request_id
        try:
            async with asyncio.timeout(None) as self._waiting:
                delta = await anext(self._deltas)
            return delta if self.outcome is None else None
        except TimeoutError:
            return None
        except StopAsyncIteration:
            error = "the engine ended the request without a reason"
        except EngineError as problem:
            error = str(problem)
        finally:
            self._waiting = None
        return TokenDelta(request_id=request_id, finish_reason="error", error=error)

    def _take(self, delta: TokenDelta) -> list[Piece]:
        """Account for a delta; returns what it lets us show, and sets `outcome` at the end."""
        if not self.request.num_generated:
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
                self._held.clear()
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
        self._held.append(self._texts.describe(token_id, delta.logprobs[index], top))

    def _release(self, text: str) -> Piece:
        piece = Piece(text, self._held)
        self._held = []
        return piece

    def _finish(self, delta: TokenDelta) -> None:
        if delta.finish_reason == "stop" or delta.finish_reason == "length":
            self.outcome = delta.finish_reason
        elif delta.finish_reason == "aborted":
            # Nobody here asked for it: the engine is being closed.
            self.outcome, self.failure = "error", shutting_down()
        elif delta.finish_reason is not None:
            message = delta.error or "The engine stopped while the response was running."
            self.outcome, self.failure = "error", ApiError(500, message, code="server_error")

    def _observe_latency(self, tokens: int) -> None:
        now = perf_counter()
        if self._last_token is None:
            self.ticket.first_token()
            self._metrics.time_to_first_token.observe(now - self._started)
            tokens -= 1
            since = now
        else:
            since = self._last_token
        for _ in range(tokens):
            self._metrics.inter_token_latency.observe((now - since) / max(1, tokens))
        self._last_token = now
