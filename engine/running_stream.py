"""A request as its reader sees it: one stream of deltas, through however many engines."""

from __future__ import annotations

import asyncio

import msgspec

from engine.request import EngineRequest, FinishReason, TokenDelta

_DEATHS_WITHOUT_PROGRESS = 3
"""Engine deaths in a row, without a token between them, after which a request gives up."""


class RunningStream:
    """Passes deltas on, and remembers what a new engine needs to go on in place of a dead one."""

    def __init__(self, request: EngineRequest) -> None:
        self.has_ended = False
        """Whether the last delta is there, if not read yet."""
        self._request = request
        self._deltas: asyncio.Queue[TokenDelta] = asyncio.Queue()
        self._generated = list(request.generated_by(0))
        self._cached_tokens = request.cached_tokens
        self._is_aborted = False
        self._deaths = 0

    async def next(self) -> TokenDelta:
        """The next delta, as soon as there is one."""
        return await self._deltas.get()

    def push(self, delta: TokenDelta) -> None:
        """Take over what an engine has produced."""
        if self.has_ended:
            return
        if delta.token_ids:
            self._generated += delta.token_ids
            self._cached_tokens = delta.cached_tokens
            self._deaths = 0
        self.has_ended = delta.finish_reason is not None
        self._deltas.put_nowait(delta)

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """End the stream from this side, unless it has ended already."""
        self.push(
            TokenDelta(
                request_id=self._request.request_id,
                finish_reason=reason,
                cached_tokens=self._cached_tokens or 0,
                error=error,
            )
        )

    def abort(self) -> None:
        """Whether or not the engine lives to hear of it, this stream will end."""
        self._is_aborted = True

    def survive_death(self) -> None:
        """The engine died. One that keeps dying of this request (or beside it) ends the stream."""
        self._deaths += 1
        if self._is_aborted:
            self.end("aborted")
        elif self._deaths >= _DEATHS_WITHOUT_PROGRESS:
            self.end("error", f"the engine died {self._deaths} times without a token in between")

    def resumption(self) -> EngineRequest:
        """The request that makes an engine go on behind what has been passed on."""
        return msgspec.structs.replace(
            self._request, generated=[list(self._generated)], cached_tokens=self._cached_tokens
        )
