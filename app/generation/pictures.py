"""The pictures of running requests, which the engine asks for by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from app.generation.generation import Asked
from app.pictures.picture import BadPicture
from app.prompt.history import SocketHistory
from app.prompt.picture_style import Shown
from app.prompt.sight import Eyes, Sight
from engine.api import EngineError
from engine.client import EngineClient
from tenants.errors import StoreUnavailable

_PIECE_BYTES: Final = 1024 * 1024
KeptUrl = Callable[[str, Shown, SocketHistory | None], Awaitable[str | None]]
"""The URL of a tenant's picture, where it is still kept."""


@dataclass
class _Running:
    """A picture that `uses` requests are running with, and how its file is found."""

    load: Callable[[], Awaitable[bytes]]
    shown: Shown
    tenant: str
    uses: int = 0


class RunningPictures:
    """Brings pictures to the engine, and has the rest brought that was brought before.

    The engine may ask again for one that it was brought, for as long as a request runs with it.
    """

    def __init__(self, engine: EngineClient, sight: Sight, kept_url: KeptUrl) -> None:
        self._sight = sight
        self._kept_url = kept_url
        self._running: dict[bytes, _Running] = {}
        self._others = engine.source
        engine.source = self.bring

    @contextmanager
    def held(self, asked: Asked, on_socket: SocketHistory | None) -> Iterator[None]:
        """Bring the pictures of a request while this is entered; their files are let go then."""
        request, prompt = asked.request, asked.prompt
        names = [one.name for one in request.pictures]
        for name, shown in zip(names, prompt.pictures, strict=True):
            if name not in self._running:
                load = self._loading(request.tenant, shown, prompt.files, on_socket)
                self._running[name] = _Running(load, shown, request.tenant)
            self._running[name].uses += 1
        try:
            yield
        finally:
            for name in names:
                running = self._running[name]
                running.uses -= 1
                if not running.uses:
                    del self._running[name]
            prompt.files.clear()

    async def bring(self, name: bytes) -> AsyncIterator[bytes]:
        """See `engine.client.Source`."""
        running = self._running.get(name)
        if running is None:
            async for piece in self._others(name):
                yield piece
            return
        eyes = self._sight.eyes
        assert eyes is not None, "there are no pictures without"
        try:
            data = await running.load()
            await _check(eyes, running, data)
            header, inputs = await eyes.inputs(running.tenant, data, running.shown.detail)
        except BadPicture as error:
            raise EngineError(f"a picture of the conversation {error}") from None
        except StoreUnavailable:
            raise EngineError("the store does not answer") from None
        yield msgspec.json.encode(header)
        for start in range(0, len(inputs), _PIECE_BYTES):
            yield inputs[start : start + _PIECE_BYTES]

    def _loading(
        self,
        tenant: str,
        shown: Shown,
        files: dict[bytes, bytes],
        on_socket: SocketHistory | None,
    ) -> Callable[[], Awaitable[bytes]]:
        async def load() -> bytes:
            file = files.get(shown.digest)
            if file is not None:
                return file
            url = await self._kept_url(tenant, shown, on_socket)
            if url is None:
                raise BadPicture("is not kept any more")
            return await self._sight.file(tenant, url)

        return load


async def _check(eyes: Eyes, running: _Running, data: bytes) -> None:
    """Raise `BadPicture` for a file that shows another picture than it did."""
    shown = running.shown
    look = await eyes.look(running.tenant, data, shown.detail)
    if look.digest != shown.digest:
        raise BadPicture("has changed where it was fetched from")
