"""The asyncio face of the engine: `async for` over token deltas, `abort`, `stats`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from engine.request import EngineInfo, EngineRequest, EngineStats, TokenDelta


class EngineError(Exception):
    """The engine could not serve this call."""


class RequestRefused(EngineError):
    """The request can never be served (`param` names the offending part of `EngineRequest`)."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class EngineUnavailable(EngineError):
    """The engine is not running (starting, crashed, or closed)."""


class EngineClient(Protocol):
    """What the service needs of an engine, wherever it runs."""

    @property
    def info(self) -> EngineInfo:
        """The running engine's constants. Raises `EngineUnavailable` before the first start."""
        ...

    async def start(self) -> None:
        """Load the model; returns when requests are served."""
        ...

    async def close(self) -> None:
        """Stop the engine. Running requests end with `finish_reason="aborted"`."""
        ...

    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """Serve one request; the last delta carries `finish_reason`.

        Leaving the iteration early (`aclose`, cancellation) aborts the request, and its blocks are
        free within one step. Raises `RequestRefused` for a request that can never fit and
        `EngineUnavailable` when the engine is down. An engine that dies while the request runs
        ends it with `finish_reason="error"`.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request with `finish_reason="aborted"`. Unknown ids are ignored."""
        ...

    async def stats(self) -> EngineStats:
        """A round trip through the engine loop. Raises `EngineUnavailable` if it does not answer."""
        ...
