"""The pictures of running requests, which the engine asks for by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from app.generation.generation import Asked
from app.pictures.picture import BadPicture
from app.prompt.history import SocketHistory
from app.prompt.picture_style import Shown
from app.prompt.sight import Sight
from app.wire.functions import Picture
from engine.api import EngineError
from engine.client import EngineClient
from tenants.errors import StoreUnavailable

_PIECE_BYTES: Final = 1024 * 1024
Kept = Callable[[str, Shown, SocketHistory | None], Awaitable[Picture | None]]
"""A tenant's picture as it was sent, where it is still kept."""


@dataclass(frozen=True, eq=False)
class _Running:
    """A picture of a running request, and how its file is found; raises `BadPicture`."""

    load: Callable[[], Awaitable[bytes]]
    shown: Shown
    tenant: str


class RunningPictures:
    """Brings pictures to the engine, and has the rest brought that was brought before.

    The engine may ask again for one that it was brought, for as long as a request runs with it.
    """

    def __init__(self, engine: EngineClient, sight: Sight, kept: Kept) -> None:
        self._sight = sight
        self._kept = kept
        self._running: dict[bytes, list[_Running]] = {}
        """By the engine's name, one for each request that runs with it."""
        self._others = engine.source
        engine.source = self.bring

    @contextmanager
    def held(self, asked: Asked, on_socket: SocketHistory | None) -> Iterator[None]:
        """Bring the pictures of a request while this is entered; their files are let go then."""
        request, prompt = asked.request, asked.prompt
        own = list[tuple[bytes, _Running]]()
        for use, shown in zip(request.pictures, prompt.pictures, strict=True):
            load = partial(self._load, request.tenant, shown, prompt.sent, on_socket)
            own.append((use.name, _Running(load, shown, request.tenant)))
            self._running.setdefault(use.name, []).append(own[-1][1])
        try:
            yield
        finally:
            for name, running in own:
                self._running[name].remove(running)
                if not self._running[name]:
                    del self._running[name]
            prompt.sent.clear()

    async def bring(self, name: bytes) -> AsyncIterator[bytes]:
        """See `engine.client.Source`."""
        if name not in self._running:
            async for piece in self._others(name):
                yield piece
            return
        running, eyes = self._running[name][-1], self._sight.eyes
        assert eyes is not None, "there are no pictures without"
        try:
            data = await running.load()
            header, inputs = await eyes.inputs(running.tenant, data, running.shown.detail)
        except BadPicture as error:
            raise EngineError(f"a picture of the conversation {error}") from None
        except StoreUnavailable:
            raise EngineError("the store does not answer") from None
        yield msgspec.json.encode(header)
        for start in range(0, len(inputs), _PIECE_BYTES):
            yield inputs[start : start + _PIECE_BYTES]

    async def _load(
        self,
        tenant: str,
        shown: Shown,
        sent: dict[bytes, Picture],
        on_socket: SocketHistory | None,
    ) -> bytes:
        """The file of a picture: one of those `sent`, or as it is kept. Raises `BadPicture`."""
        picture = sent.get(shown.digest)
        if picture is None:
            picture = await self._kept(tenant, shown, on_socket)
        if picture is None:
            raise BadPicture("is not kept any more")
        if picture.file:
            return picture.file
        data = await self._sight.file(tenant, picture)
        if picture.file_id:
            return data  # which is never another one
        assert self._sight.eyes is not None
        look = await self._sight.eyes.look(tenant, data, shown.detail)
        if look.digest != shown.digest:
            raise BadPicture("has changed where it was fetched from")
        return data
