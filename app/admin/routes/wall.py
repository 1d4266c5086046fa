"""`/admin/wall`: the KV blocks of a replica and what becomes of them, as a stream of frames; and
the requests that lean on them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import Request, Response
from pydantic import Field
from starlette.types import Receive, Scope, Send

from app.admin.documents import Document
from app.admin.door import bearer
from app.admin.lists import Query
from app.admin.parameters import Entry, InQuery, Served
from app.admin.problems import Problem
from app.admin.route import may_be, operations
from app.context import Service
from app.transport.server_sent_events import EventStream
from engine.api import ChainBreak, EngineError, EngineUnavailable, Loss, RequestState
from engine.blocks.wall import PARTIAL
from engine.client import EngineClient

router = operations("Live view", "/wall")

_MEDIA_TYPE: Final = "application/octet-stream"
_BYTES: Final = {"type": "string", "format": "binary"}
_INTERVAL_SECONDS: Final = 0.2
_BYTES_A_SECOND: Final = 50_000
_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 1.0
"""Between two looks whether the watcher's token still holds."""
_LENGTH_BYTES: Final = 4
_NOTHING: Final = bytes(_LENGTH_BYTES)
"""An empty frame keeps the connection alive."""


class ReplicaQuery(Query):
    """Whose blocks."""

    replica: Annotated[
        int, Field(ge=0, le=9999, description="In a cluster: its place among those ready.")
    ] = 0


class RequestsQuery(ReplicaQuery):
    """Whose requests."""

    cell: Annotated[
        int | None,
        Field(ge=0, description="Tell where the block in this cell of the wall lies, too."),
    ] = None


class WallQuery(ReplicaQuery):
    """Whose blocks, and for how long."""

    seconds: Annotated[
        int, Field(ge=1, le=3600, description="The stream's end; one may ask again.")
    ] = 3600


@router.get(
    "",
    response_class=Response,
    responses={
        HTTPStatus.OK: {"content": {_MEDIA_TYPE: {"schema": _BYTES}}},
        **may_be(HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS),
    },
)
async def watch_wall(
    query: InQuery[WallQuery], service: Served, door: Entry, request: Request
) -> Response:
    """Stream what becomes of every KV block: its state, its owner, and how many hold it.

    Frames, each behind its length (4 bytes, big-endian), as docs/wall.md describes them: first
    every block, then five times a second what has changed, 50 KB a second at most. Who reads slowly
    is told of several changes at once. An empty frame says that the stream lives.
    """
    watch = _Watch(service.engine, query, lambda: door.is_open(bearer(request)))
    return _FrameResponse(service, watch, await watch.first())


class WallBreak(Document):
    """Where what was found of a prompt ended, and why."""

    token: int = Field(description="So many were found.")
    reason: Literal[
        "prompt_ends",
        "prefix_shorter_than_block",
        "not_asked",
        "evicted",
        "not_used",
        "no_state",
        "lost_long_ago",
        "never_seen",
        "unknown",
    ] = Field(
        description="All was found, but for a part of a block; it is less than a block; nothing "
        "was asked of the cache; the next block was evicted; it was there, but computed again all "
        "the same; its keys were there, but no state behind them; it was evicted so long ago that "
        "no more is known; it is new since the engine's start; or nothing is known of it."
    )
    keys_tokens: int = Field(description="Whose keys were there behind that, without a state.")
    evicted_by: Loss | None
    evicted_for: str | None = Field(description="The tenant whose request got its memory.")
    evicted_at: int | None = Field(description="Unix time; what was lost long ago was so before.")
    larger_pool: float | None = Field(
        description="Of what was lost: which part more of all prompts' blocks a pool of twice the "
        "size would have found, see /cache."
    )


class WallRequest(Document):
    """A request, and the cells that it leans on."""

    id: str
    tenant: str
    asked_at: float = Field(description="Unix time.")
    state: Literal["running", "waiting", "preempted", "finished"]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = Field(
        description="Those of the prompt that were found when it began; null before that."
    )
    broke: WallBreak | None
    blocks: int = Field(description="How long the longest of its lines really is.")
    shared_blocks: int = Field(description="Of the cells in its lines: those others hold, too.")
    lines: list[list[int]] = Field(
        description="The cells of each of its sequences in their order, some at least; of one that "
        "does not run, where what it had is found now: in blocks, or host slots, which lie behind "
        "the last block."
    )


class WallPlace(Document):
    """Where a block lies in what a conversation has left, or requests under a registered prompt."""

    tenant: str
    conversation: str | None = Field(
        description="As in a tenant's cache; null: a registered prompt's."
    )
    number: int = Field(description="Of the block, from 1.")
    blocks: int = Field(description="Those of all that was left.")
    age_seconds: float = Field(description="Since the end of the first request.")
    idle_seconds: float = Field(description="Since the end of the last one.")
    requests: int
    hits: int = Field(description="Requests that found it, as in a tenant's cache.")


class WallRequests(Document):
    """Requests in the order in which they came; and behind them those that ended lately, the last
    one first.
    """

    block_size: int = Field(description="Tokens in a block.")
    replicas: int = Field(description="How many are ready.")
    requests: list[WallRequest]
    places: list[WallPlace] = Field(
        description="Of the block in `cell`, the last used first; four at most."
    )
    on_disk: dict[str, int] = Field(
        description="Blocks in files, by owner; under an empty name those whose owner is not known."
    )


@router.get("/requests", responses=may_be(HTTPStatus.CONFLICT))
async def list_wall_requests(query: InQuery[RequestsQuery], service: Served) -> WallRequests:
    """Show which requests lean on which of a replica's KV blocks, and what is on disk.

    64 of the live ones at most, those that wait last; and up to 32 that have ended while somebody
    asked this at least every ten seconds.
    """
    engine = service.engine
    roll = await engine.roll(query.replica, query.cell)
    return WallRequests(
        block_size=engine.info.block_size,
        replicas=roll.replicas,
        requests=[_request(one, roll.gain_of_twice, time.time()) for one in roll.requests],
        places=[WallPlace.of(one) for one in roll.places],
        on_disk=roll.on_disk,
    )


def _request(state: RequestState, gain_of_twice: float, now: float) -> WallRequest:
    return WallRequest.of(
        state,
        id=state.request_id,
        asked_at=round(now - state.age_seconds, 3),
        cached_tokens=state.found_tokens,
        broke=None if state.broke is None else _break(state.broke, gain_of_twice, now),
        blocks=state.num_blocks,
        shared_blocks=state.num_shared,
    )


def _break(broke: ChainBreak, gain_of_twice: float, now: float) -> WallBreak:
    was_lost = broke.why in ("evicted", "lost_long_ago")
    return WallBreak(
        token=broke.tokens,
        reason=broke.why,
        keys_tokens=broke.keys_tokens,
        evicted_by=broke.evicted_by,
        evicted_for=broke.evicted_for or None,
        evicted_at=int(now - broke.seconds_ago) if was_lost else None,
        larger_pool=gain_of_twice if was_lost else None,
    )


class _FrameResponse(Response):
    """Frames until their end, or their reader's."""

    media_type = _MEDIA_TYPE

    def __init__(self, service: Service, watch: _Watch, first: bytes) -> None:
        super().__init__()
        self._stream = EventStream(
            watch.frames(first), watch.end, service.bounds, media_type=_MEDIA_TYPE, comment=_NOTHING
        )
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        if scope["method"] == "HEAD":
            await self._watch.end()
            await super().__call__(scope, receive, send)
        else:
            await self._stream(scope, receive, send)


class _Watch:
    """One watcher of an engine's blocks."""

    def __init__(
        self, engine: EngineClient, query: WallQuery, is_welcome: Callable[[], Awaitable[bool]]
    ) -> None:
        """`is_welcome` says whether its sender would still be let in."""
        self._engine = engine
        self._replica = query.replica
        self._seconds = query.seconds
        self._is_welcome = is_welcome
        self._name = secrets.token_hex(8)

    async def first(self) -> bytes:
        """The first frame. Raises `Problem` 429 where too many look, and `EngineError`."""
        frame = await self._engine.wall(self._name, self._replica)
        if not frame:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "Too many look at these blocks already.",
                code="too_many_watchers",
            )
        return frame

    async def frames(self, first: bytes) -> AsyncGenerator[bytes, None]:
        """That frame and the ones behind it, each with its length.

        While the engine is away there are none; its successor tells all anew.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        look = loop.time() + _LOOK_SECONDS
        frame: bytes | None = first
        while frame != b"" and loop.time() < end:
            if loop.time() >= look:
                if not await self._is_welcome():
                    return
                look = loop.time() + _LOOK_SECONDS
            if frame is None:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                yield len(frame).to_bytes(_LENGTH_BYTES, "big") + frame
                if not frame[0] & PARTIAL:  # at first, all is told as fast as it is taken
                    await asyncio.sleep(max(_INTERVAL_SECONDS, len(frame) / _BYTES_A_SECOND))
            frame = await self._next()

    async def end(self) -> None:
        """Look no more."""
        await self._engine.unwatch(self._name)

    async def _next(self) -> bytes | None:
        """`None` while nobody answers; empty if nobody will."""
        try:
            return await self._engine.wall(self._name, self._replica)
        except EngineUnavailable:
            return None
        except EngineError:
            return b""
