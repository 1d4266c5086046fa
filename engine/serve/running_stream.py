"""A request as its reader sees it: one stream of deltas, through however many engines.

Tokens are shown at once, or one by one at a pace that tells nothing of how they were made. Several
of one step tell that guesses were right, and so what an answer has in common with its prompt or an
earlier answer: who sees the packets of an encrypted stream can tell what is talked of (arXiv
2411.01076). Spaced evenly, and no closer than single steps would come, they do not.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable

import msgspec

from engine.api import EngineRequest, FinishReason, TokenDelta

_DEATHS_WITHOUT_PROGRESS = 2
"""Engine deaths in a row, without progress between them, after which a request is to blame for one
that it dies alone."""
_DEATHS_IN_COMPANY = 4
"""The same where others were in the engine each time."""
_TRIAL_DELTAS = 2
"""Of one sequence, from one engine, that are progress: its prompt's, and one of a decoding step."""


class Cadence:
    """Deltas of a stream on their way to its reader, in the order in which they are due."""

    def __init__(self, interval_seconds: float, clock: Callable[[], float]) -> None:
        """At least `interval_seconds` between two tokens of a sequence, by `clock`; 0: none."""
        self._interval = interval_seconds
        self._clock = clock
        self._waiting: list[tuple[float, int, TokenDelta]] = []
        self._num_pushed = 0
        self._newest: dict[int, float] = {}
        """Of each sequence: when its newest token is due."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def push(self, delta: TokenDelta) -> None:
        """Take a delta over. What comes of it is due behind what its sequence had before."""
        if not self._interval:
            self._add(0.0, delta)
            return
        for part in _tokens(delta):
            newest, now = self._newest.get(part.index), self._clock()
            due = now
            if newest is not None:
                due = max(now, newest + self._interval if part.token_ids else newest)
            self._newest[part.index] = due
            self._add(due, part)

    def seconds_left(self) -> float:
        """Until the next delta is due, of which there is one; 0 if it is."""
        return max(0.0, self._waiting[0][0] - self._clock()) if self._interval else 0.0

    def pop(self) -> TokenDelta:
        """The next delta."""
        return heapq.heappop(self._waiting)[2]

    def _add(self, due: float, delta: TokenDelta) -> None:
        self._num_pushed += 1
        heapq.heappush(self._waiting, (due, self._num_pushed, delta))


def _tokens(delta: TokenDelta) -> list[TokenDelta]:
    """A delta for each of its tokens, the last of which ends what it ends.

    Hypotheses of a beam search come whole: nobody has guessed for them.
    """
    if len(delta.token_ids) < 2 or delta.score is not None:
        return [delta]
    parts = [
        msgspec.structs.replace(
            delta,
            token_ids=[token_id],
            logprobs=None if delta.logprobs is None else [delta.logprobs[place]],
            finish_reason=None,
        )
        for place, token_id in enumerate(delta.token_ids)
    ]
    parts[-1] = msgspec.structs.replace(parts[-1], finish_reason=delta.finish_reason)
    return parts


class RunningStream:
    """Passes deltas on, and remembers what a new engine needs to go on in place of a dead one."""

    def __init__(self, request: EngineRequest, cadence_seconds: float = 0.0) -> None:
        """Its tokens are read at that `engine.serve.running_stream`."""
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._deltas = Cadence(cadence_seconds, self._loop.time)
        self._news: asyncio.Future[None] | None = None
        self._generated = [list(request.generated_by(i)) for i in range(request.num_outputs)]
        self._cached_tokens = request.cached_tokens
        self._cache_write_tokens = 0
        self._num_scored = request.num_scored
        self._open = set(range(request.num_outputs)).difference(request.ended)
        self._aborted: set[int] = set()
        self._num_searched = 0
        self._shown: Counter[int] = Counter()
        """Deltas that the engine of now has brought, by sequence."""
        self._left_at: float | None = None
        """When the engine before was lost, until another one goes on."""
        self.deaths = request.deaths
        """Engines that have died with it, one after the other, and got nowhere with it."""

    @property
    def request_id(self) -> str:
        """Unique among the streams that are read."""
        return self._request.request_id

    @property
    def has_ended(self) -> bool:
        """Whether the last delta of every sequence is there, if not read yet."""
        return not self._open

    @property
    def is_harmless(self) -> bool:
        """Whether the engine of now has got somewhere with it, and lives."""
        return self.has_ended or max(self._shown.values(), default=0) >= _TRIAL_DELTAS

    @property
    def is_read(self) -> bool:
        """Whether it has ended and nothing is left to read."""
        return not self._open and not self._deltas

    async def next(self) -> TokenDelta:
        """The next delta, as soon as one is due. For one reader."""
        while not self._deltas or self._deltas.seconds_left():
            self._news = self._loop.create_future()
            if self._deltas:
                await asyncio.wait([self._news], timeout=self._deltas.seconds_left())
            else:
                await self._news
        return self._deltas.pop()

    def push(self, delta: TokenDelta) -> None:
        """Take over what an engine has produced."""
        if delta.index not in self._open:
            return
        if self._left_at is not None:
            lost, self._left_at = self._loop.time() - self._left_at, None
            delta = msgspec.structs.replace(delta, rebuilt_seconds=lost)
        self._num_scored += len(delta.prompt_logprobs)
        if delta.token_ids:
            self._generated[delta.index] += delta.token_ids
            self._cached_tokens = delta.cached_tokens
            self._cache_write_tokens = delta.cache_write_tokens
        if delta.finish_reason is not None:
            self._open.remove(delta.index)
        if delta.token_ids or delta.finish_reason or delta.searched_tokens > self._num_searched:
            self._shown[delta.index] += 1
        if self.is_harmless:
            self.deaths = 0
        self._num_searched = max(self._num_searched, delta.searched_tokens)
        self._deltas.push(delta)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def end(self, reason: FinishReason, error: str | None = None, index: int | None = None) -> None:
        """End the stream from this side, or one sequence of it, where it has not ended already."""
        for one in sorted(self._chosen(index)):
            delta = TokenDelta(
                request_id=self._request.request_id,
                index=one,
                finish_reason=reason,
                cached_tokens=self._cached_tokens or 0,
                cache_write_tokens=self._cache_write_tokens,
                error=error,
            )
            self.push(delta)

    def abort(self, index: int | None = None) -> None:
        """Whether or not the engine lives to hear of it, the stream or this sequence will end."""
        self._aborted |= self._chosen(index)

    def hand_over(self) -> None:
        """Another engine is to go on with it."""
        self._shown.clear()
        for index in sorted(self._aborted):
            self.end("aborted", index=index)
        if self._left_at is None:
            self._left_at = self._loop.time()

    def survive_death(self, *, alone: bool) -> None:
        """The engine that had this request, perhaps nothing else, has died.

        A second one that got nowhere with it ends it, but others that were in that engine may have
        killed it even if they had got further; see `Entrance`.
        """
        self.deaths += 1
        self.hand_over()
        if self.deaths >= (_DEATHS_WITHOUT_PROGRESS if alone else _DEATHS_IN_COMPANY):
            self.end("error", f"the engine died {self.deaths} times without progress in between")

    def resumption(self) -> EngineRequest:
        """The request that makes an engine go on behind what has been passed on."""
        return msgspec.structs.replace(
            self._request,
            generated=[list(tokens) for tokens in self._generated] if any(self._generated) else [],
            cached_tokens=self._cached_tokens,
            num_scored=self._num_scored,
            deaths=self.deaths,
            ended=tuple(sorted(set(range(self._request.num_outputs)) - self._open)),
        )

    def _chosen(self, index: int | None) -> set[int]:
        """The open sequences that `index` means; `None` means all."""
        return set(self._open) if index is None else self._open & {index}
