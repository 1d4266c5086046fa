"""A running generation seen as text: pieces of its lines to show, and at the end why it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Literal

from transformers import PreTrainedTokenizerBase

from app.formats.reasoning.parser import ReasoningParser
from app.formats.tools.parser import ToolParser
from app.generation.comparison import UNAVAILABLE, Comparison
from app.generation.lines import Line, LineEnd, Piece
from app.generation.time_to_first_token import Timeline
from app.generation.token_texts import TokenTexts
from app.limits.admission import Ticket
from app.limits.booking import Used
from app.observe.log_lines import log_generation
from app.observe.metrics import Metrics
from app.observe.request_fields import current_request
from app.observe.sharing import Saved
from app.prompt.conversation import Prompt
from app.prompt.reasoning_style import Opened
from app.shares import SharedRoom
from app.wire.errors import ApiError, invalid_request, shutting_down
from app.wire.events import EncodedLogprob
from app.wire.functions import Tools
from app.wire.prompt_cache import CacheDiagnostics
from engine.api import OF_GRAMMAR, EngineError, EngineRequest, PromptLogprobs, TokenDelta
from engine.client import EngineClient

Interruption = Literal["cancelled", "suspended", "error"]
Outcome = LineEnd | Interruption
_AT_ONCE = 128
"""Log-probabilities that are described without letting others go on."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the engine is asked, as far as text is concerned: made by `app.generation.begin`.

    `engine_kind` is what tokens and KV depend on: with another engine the answer cannot go on. A
    request with `generated` tokens goes on behind them: `cached_tokens`, `cache_write_tokens` and
    `held` are then what an earlier generation of its only line was left with. `tools` may be called
    in it. `grammar_field` has asked for the request's grammar. `comparison` is with an earlier
    response, where one was named. `adapter` is what the tenant's usage calls the request's.
    """

    request: EngineRequest
    prompt: Prompt
    stop: Sequence[str]
    engine_kind: bytes
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    held: Sequence[EncodedLogprob] = ()
    tools: Tools = field(default_factory=Tools)
    grammar_field: str | None = None
    comparison: Comparison | CacheDiagnostics | None = None
    adapter: str | None = None


class Generation:
    """Reads what the engine answers. Whatever ends it, the engine's blocks are given back, and
    `ticket` is settled.

    Whoever has it must iterate `pieces` or call `close`. Its `lines` and `cached_tokens` grow until
    it has an `outcome`; `failure` explains the outcome "error". `prompt` is the conversation that
    it answers.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: PreTrainedTokenizerBase,
        metrics: Metrics,
        asked: Asked,
        ticket: Ticket,
        logprob_room: SharedRoom,
        deltas: AsyncGenerator[TokenDelta, None],
        new_reader: Callable[[Tools], ToolParser | None],
        new_sifter: Callable[[Opened | None, Collection[str]], ReasoningParser | None],
    ) -> None:
        request = self.request = asked.request
        self.prompt = asked.prompt
        self.lines = [
            Line(
                index,
                request.sampling,
                tokenizer,
                asked.stop,
                request.generated_by(index),
                asked.held,
                new_reader(asked.tools),
                new_sifter(asked.prompt.opened, asked.tools.raws),
            )
            for index in range(request.num_outputs)
        ]
        self.prompt_logprobs: list[EncodedLogprob] = []
        """Of the prompt's tokens behind the first, where they are asked for."""
        self._texts = TokenTexts(tokenizer)
        self.cached_tokens = asked.cached_tokens
        self.cache_write_tokens = asked.cache_write_tokens
        self.saved_seconds = 0.0  # of computing, as tokens were found in the cache
        self.is_for_somebody = True
        """Or a demonstration's, which saves nobody anything."""
        self.failure: ApiError | None = None
        self.named: Mapping[str, bytes] = {}
        """The items that its request has named, as JSON by id."""
        self.asked = asked
        self.ticket = ticket
        self._leaving = ExitStack()
        self._engine = engine
        self._metrics = metrics
        self._interruption: Interruption | None = None
        self._engine_failed = False
        self._deltas: AsyncGenerator[TokenDelta, None] | None = deltas
        self._reader: asyncio.Task[object] | None = None
        self._is_waiting = False
        self._first_run = request.num_generated == 0
        self.timeline = Timeline(series=metrics.traffic.tenants.did(request.tenant, 0))
        self._origin = current_request()
        if self._origin is not None:
            self._origin.num_generations += 1
        self._searched_tokens = 0
        self._counted = request.num_generated
        """Output tokens that the metrics know."""
        self._prompt_is_counted = not self._first_run
        self._logprob_room = logprob_room
        self.kept_bytes = 0
        """Of log-probabilities that its reader keeps; 1.6 kB for a token with 20 alternatives."""
        self._keeps_on = False
        metrics.streams_running.inc()

    @property
    def line(self) -> Line:
        """The only line of a request that has one."""
        [line] = self.lines
        return line

    @property
    def outcome(self) -> Outcome | None:
        """Why it ended, once it has; that of the first line where all have come to their ends."""
        if self._interruption is not None:
            return self._interruption
        for line in self.lines:
            if line.end is None:
                return None
        return self.lines[0].end

    @property
    def output_tokens(self) -> int:
        """Tokens of all lines so far; of a search, those of all its beams."""
        if self.request.beam is not None:
            return self._searched_tokens
        return sum(len(line.output_ids) for line in self.lines)

    @property
    def reasoning_tokens(self) -> int:
        """Those of its output tokens that are reasoning."""
        return sum(line.num_reasoning_tokens for line in self.lines)

    @property
    def cache_diagnostics(self) -> CacheDiagnostics:
        """Why the prompt was found in the cache, or not, once the answer has ended."""
        comparison = self.asked.comparison
        if not isinstance(comparison, Comparison):
            return comparison or UNAVAILABLE
        if self.outcome not in ("stop", "length"):
            return UNAVAILABLE
        return comparison.diagnosis(len(self.request.prompt), self.cached_tokens)

    def end_with(self, presence: AbstractContextManager[None]) -> None:
        """Enter `presence`, and leave it at the end, when the engine no longer runs this."""
        self._leaving.enter_context(presence)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The answer's text as it comes.

        Errors of the engine set `outcome`, since the stream has begun. What a suspended generation
        holds back stays so.
        """
        self._reader = asyncio.current_task()
        try:
            while self.outcome is None:
                delta = await self._next_delta()
                if delta is not None:
                    pieces = await self._take(delta)
                    if self.output_tokens > self._counted:
                        self._count(owes_prompt=True)
                    for piece in pieces:
                        yield piece
            if self.outcome != "suspended":
                for piece in self.rest():
                    yield piece
        finally:
            await self.close()

    def rest(self) -> list[Piece]:
        """What is held back, given that no more tokens will come. Harmless when repeated."""
        return [piece for line in self.lines for piece in line.rest()]

    def keep(self, logprobs: Sequence[EncodedLogprob], *, past_end: bool = False) -> None:
        """Its reader keeps these until its end, or `past_end` until it calls `let_go`. Where there
        is no room, it ends here and fails.
        """
        self._keeps_on |= past_end
        count = sum(len(one) for one in logprobs)
        if self._deltas is None or not count:
            return
        if self._logprob_room.take(self.request.tenant, count):
            self.kept_bytes += count
        else:
            message = "Too many log-probabilities are kept: ask for fewer of them at once."
            self.fail(ApiError(429, message, code="too_many_logprobs"))

    def let_go(self) -> None:
        """Nothing is kept any more. May be called twice."""
        count, self.kept_bytes = self.kept_bytes, 0
        self._logprob_room.give_back(self.request.tenant, count)

    def cancel(self) -> None:
        """End the answer here, with outcome "cancelled"; harmless after its end."""
        self._interrupt("cancelled")

    def suspend(self) -> None:
        """End it here, with outcome "suspended", so that another generation can go on behind it."""
        self._interrupt("suspended")

    def fail(self, error: ApiError) -> None:
        """End it here, with outcome "error"; harmless after its end."""
        self._interrupt("error", error)

    async def spoil(self, error: ApiError) -> None:
        """End it with outcome "error", whatever it has come to: nobody can be told the rest."""
        self._interruption, self.failure = "error", error
        await self.close()

    async def close(self) -> None:
        """Give the request back to the engine, finished or not, and settle. May be called twice."""
        deltas, self._deltas = self._deltas, None
        if deltas is None:
            return
        self._metrics.streams_running.dec()
        if not self._keeps_on:
            self.let_go()
        with self._leaving:
            try:
                await deltas.aclose()
            finally:
                log_generation(self, self._origin)
                await self._settle()

    def _interrupt(self, how: Interruption, failure: ApiError | None = None) -> None:
        if self.outcome is None:
            self._interruption, self.failure = how, failure
            if self._is_waiting:
                assert self._reader is not None
                self._is_waiting = False
                self._reader.cancel()

    async def _settle(self) -> None:
        """Account for the tokens; an earlier generation has paid for its own and the prompt.

        Whoever leaves before the first token pays for the prompt: how much of it was computed by
        then is not known here, and leaving early must not be a way to compute for nothing. The
        service's own failures cost nothing, nor does an answer that goes on after a restart.
        """
        output = self.output_tokens - self.request.num_generated
        owes_prompt = output > 0 or not (self._engine_failed or self.outcome == "suspended")
        first = owes_prompt and not self.request.num_generated
        prompt = len(self.request.prompt) if first else 0
        cached = self.cached_tokens if first else 0
        self._count(owes_prompt=owes_prompt)
        if first and self.is_for_somebody:
            self._count_saved()
        used = Used(
            prompt_tokens=prompt,
            cached_tokens=cached,
            cache_write_tokens=self.cache_write_tokens if first else 0,
            output_tokens=output,
        )
        await self.ticket.settle(used)

    def _count(self, *, owes_prompt: bool) -> None:
        """Have the bill and the metrics know of all tokens so far, before anybody is shown them.

        The metrics know of the prompt's with the first of the answer, or at the end where it is
        owed without one; and of how the answer has ended, if it has.
        """
        output, self._counted = self.output_tokens - self._counted, self.output_tokens
        found = (self.cached_tokens, self.cache_write_tokens) if self._first_run else (0, 0)
        self.ticket.note(*found, self._counted - self.request.num_generated)
        first = owes_prompt and not self._prompt_is_counted
        prompt, cached = (len(self.request.prompt), self.cached_tokens) if first else (0, 0)
        reason = self.outcome if self._deltas is None else None
        traffic, tenant = self._metrics.traffic, self.request.tenant
        saved = self.saved_seconds if first else 0.0
        traffic.count_answer(tenant, prompt, cached, output, reason, saved)
        if self.asked.adapter is not None:
            traffic.count_adapter(tenant, self.asked.adapter, int(first), prompt, cached, output)
        if first:
            self._prompt_is_counted = True
            if origin := self.prompt.origin:
                traffic.count_prompt(f"{origin.owner}/{origin.name}", prompt, cached)

    def _count_saved(self) -> None:
        """Account for what it has saved; a registered prompt's part is that of its tokens."""
        prompt, found, prices = len(self.request.prompt), self.cached_tokens, self.ticket.prices
        found_of = min(found, shared := self.request.namespaces.shared_tokens)
        seconds = self.saved_seconds * found_of / found if found else 0.0
        registered = f"{one.owner}/{one.name}" if (one := self.prompt.origin) else None
        self._metrics.sharing.count(
            self.request.tenant,
            Saved.by_one(prompt, found, self.saved_seconds, prices),
            registered,
            Saved.by_one(shared, found_of, seconds, prices),
        )

    async def _next_delta(self) -> TokenDelta | None:
        """The next delta, or `None` once the generation was ended from outside.

        That cancels the wait like `asyncio.timeout` does, whose costs come once for every token.
        """
        assert self._deltas is not None
        assert self._reader is not None
        self._is_waiting = True
        try:
            delta = await anext(self._deltas)
            return delta if self._interruption is None else None
        except asyncio.CancelledError:
            if self._is_waiting or self._reader.uncancel() > 0:
                raise  # this is not, or not only, our own
            return None
        except StopAsyncIteration:
            error = "the engine ended the request without a reason"
        except EngineError as problem:
            error = str(problem)
        finally:
            self._is_waiting = False
        request_id = self.request.request_id
        return TokenDelta(request_id=request_id, finish_reason="error", error=error)

    async def _take(self, delta: TokenDelta) -> list[Piece]:
        """Account for a delta; returns what it lets us show.

        A line that has come to a stop string ends at the engine as well; a line that fails ends
        them all.
        """
        if delta.finish_reason == "error":
            self._engine_failed = True
            message = delta.error or "The engine stopped while the response was running."
            if message.startswith(OF_GRAMMAR):
                name = self.asked.grammar_field
                told = message if name is None else f"'{name}': {message}"
                self.fail(invalid_request(f"{told}.", name))
            else:
                self.fail(ApiError(500, message, code="server_error"))
        self.timeline.note_waiting(delta)
        if self._first_run:
            self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
            self.cache_write_tokens = max(self.cache_write_tokens, delta.cache_write_tokens)
            self.saved_seconds = max(self.saved_seconds, delta.saved_seconds)
        if delta.searched_tokens:
            self.ticket.first_token()
            # A search whose engine has died begins anew, and is paid for once.
            self._searched_tokens = max(self._searched_tokens, delta.searched_tokens)
        if delta.prompt_logprobs:
            await self._score(delta.prompt_logprobs)
            return []
        line = self.lines[delta.index]
        if line.end is not None:
            return []
        if delta.token_ids:
            self.ticket.first_token()
            self.timeline.note_tokens(delta)
        pieces = line.take(delta)
        if delta.finish_reason == "aborted":
            # Nobody here asked for it: the engine is being closed.
            self._engine_failed = True
            self.fail(shutting_down())
        elif line.end is not None and delta.finish_reason is None and self.outcome is None:
            await self._engine.abort(self.request.request_id, line.index)
        return pieces

    async def _score(self, logprobs: Sequence[PromptLogprobs]) -> None:
        """Keep log-probabilities of the prompt's next tokens, in turns of a millisecond or two."""
        step = max(1, _AT_ONCE // (1 + (self.request.sampling.prompt_logprobs or 0)))
        for start in range(0, len(logprobs), step):
            first = 1 + len(self.prompt_logprobs)
            part = logprobs[start : start + step]
            ids = self.request.prompt[first : first + len(part)]
            encoded = list(map(self._texts.describe_prompt, ids, part))
            self.prompt_logprobs += encoded
            self.keep(encoded)
            if self._interruption is not None:
                return
            await asyncio.sleep(0)
