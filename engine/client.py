"""The asyncio face of the engine: `async for` over token deltas, `abort`, `stats`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from engine.api import (
    BlockFate,
    ChainPage,
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    EngineUnavailable,
    RequestRefused,
    Roll,
    TokenDelta,
)
from engine.replicas import FleetFigures

__all__ = ["EngineClient", "EngineError", "EngineUnavailable", "RequestRefused"]


class EngineClient(Protocol):
    """What the service needs of an engine, wherever it runs."""

    @property
    def info(self) -> EngineInfo:
        """The running engine's constants. Raises `EngineUnavailable` while it is down."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why requests had better go to another service, though this one may serve them yet."""
        ...

    @property
    def fleet(self) -> FleetFigures | None:
        """What is known of each replica; `None` where one engine serves alone."""
        ...

    async def start(self) -> None:
        """Load the model; returns when requests are served. Raises `EngineError`."""
        ...

    async def close(self) -> None:
        """Stop the engine. Running requests end with `finish_reason="aborted"`."""
        ...

    async def wait_started(self, starts: int) -> int:
        """Wait until the engine has become ready more than `starts` times; returns the count.

        An engine that comes back after a crash has an empty cache: this is when to warm it.
        """
        ...

    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """Serve one request; the last delta of each of its sequences carries `finish_reason`.

        Leaving the iteration early (`aclose`, cancellation) aborts the request, and its blocks are
        free within one step. Raises `RequestRefused` for a request that can never fit and
        `EngineUnavailable` when the engine is down. An engine that dies while the request runs is
        started again and goes on where it was: the reader sees a pause. Only if it does not come
        back in time, or keeps dying of what it runs, the request ends with
        `finish_reason="error"`.
        """
        ...

    async def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one sequence of it, with `finish_reason="aborted"`.

        What is unknown or has ended is left alone.
        """
        ...

    async def unpin(self, pin: str) -> None:
        """Let go of the blocks that a request with this `pin` holds. Unknown names are fine."""
        ...

    async def forget_tenant(self, tenant: str) -> None:
        """Drop a deleted tenant's pins and cached blocks, and whatever else is known of it."""
        ...

    async def forget_others(self, tenants: Mapping[str, str]) -> None:
        """Remove what is kept on disk for all but these, each with what tells its namespaces'
        secret from former ones.

        The others were deleted, or their cache was switched off, while no engine could be told; or
        they had another secret.
        """
        ...

    async def keep_under(self, tenant: str, secret: str) -> None:
        """What `forget_others` tells, of one tenant: what is kept of it under another secret is
        removed.
        """
        ...

    async def block_fates(self, hashes: Sequence[bytes]) -> list[BlockFate]:
        """What has become of the blocks with these hashes, which only their tenant can have made
        (`engine.blocks.hashing`): whether each can be found, or else when it was evicted and why.

        A round trip through the engine loop. Raises `EngineUnavailable` without an answer, and
        `ValueError` for more hashes than the longest context has blocks.
        """
        ...

    async def chains(self, tenant: str, before: int | None = None) -> ChainPage:
        """Some of what a tenant's conversations and registered prompts have in the cache: those
        used before number `before`, if it is given.

        A round trip through the engine loop. Raises `EngineUnavailable` without an answer.
        """
        ...

    async def wall(self, watcher: str, replica: int = 0) -> bytes:
        """What has become of the blocks since this watcher asked last: a frame, as
        `engine.blocks.wall` describes it. One that is new, or has not asked for long, is told all;
        nothing where too many look already. In a cluster, those are of one `replica`, by its place
        among those that are ready.

        A round trip through the engine loop. Raises `EngineUnavailable` without an answer, and
        `EngineError` where there is no such replica.
        """
        ...

    async def roll(self, replica: int = 0, cell: int | None = None) -> Roll:
        """Which requests there are, what each has found, and the blocks that it leans on; of one
        `replica`, as with `wall`. Those that have ended are told where somebody has asked lately.
        Besides, where the block in a `cell` of the wall lies in chains, if one is named; and how
        many blocks are on disk.

        A round trip through the engine loop. Raises `EngineUnavailable` without an answer, and
        `EngineError` where there is no such replica.
        """
        ...

    async def unwatch(self, watcher: str) -> None:
        """This watcher looks no more, wherever it did. Unknown names are fine."""
        ...

    async def stats(self) -> EngineStats:
        """A round trip through the engine loop. Raises `EngineUnavailable` without an answer."""
        ...
