"""Pictures of the web: from hosts that an operator has named, and from nowhere else.

The name is looked up once, every address that it has must be a public one, and it is one of these
that is connected to: a name that means another address a moment later finds nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore

from app.pictures.picture import BadPicture

Resolve = Callable[[str], Awaitable[Collection[str]]]
"""The addresses of a host. Raises `OSError`."""

_OK: Final = 200


async def addresses_of(host: str) -> Collection[str]:
    """As the system has them. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Fetcher:
    """Fetches over https from some hosts."""

    def __init__(
        self,
        hosts: Iterable[str],
        most_bytes: int,
        seconds: float,
        resolve: Resolve = addresses_of,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """A picture has at most so many bytes, and comes within so many seconds."""
        self._hosts = {host.lower() for host in hosts}
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._resolve = resolve
        self._context = context

    async def fetch(self, url: str) -> bytes:
        """The bytes of the picture at `url`. Raises `BadPicture`."""
        try:
            parts = urlsplit(url)
        except ValueError:
            raise BadPicture("must be a data: URL, or an https: one") from None
        if parts.scheme != "https":
            raise BadPicture("must be a data: URL, or an https: one")
        if not self._hosts:
            raise BadPicture("is of the web, and pictures are not fetched here: send a data: URL")
        host = (parts.hostname or "").lower()
        if host not in self._hosts:
            raise BadPicture("cannot be fetched from this host: send a data: URL")
        if parts.username is not None:
            raise BadPicture("must be a URL without a name and a password")
        try:
            async with asyncio.timeout(self._seconds):
                return await self._fetched(url)
        except TimeoutError:
            raise BadPicture("does not come in time") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError):
            raise BadPicture("cannot be fetched") from None

    async def _fetched(self, url: str) -> bytes:
        context = self._context or ssl.create_default_context()
        backend = _Checked(self._resolve)
        async with (
            httpcore.AsyncConnectionPool(ssl_context=context, network_backend=backend) as pool,
            pool.stream("GET", url, headers={"accept": "image/*"}) as response,
        ):
            if response.status != _OK:
                raise BadPicture(f"cannot be fetched: its host answers {response.status}")
            headers = {name.lower(): value for name, value in response.headers}
            if not headers.get(b"content-type", b"").lower().startswith(b"image/"):
                raise BadPicture("is no picture: its host says so")
            data = bytearray()
            async for piece in response.aiter_stream():
                data += piece
                if len(data) > self._most_bytes:
                    raise BadPicture(f"has more than {self._most_bytes} bytes")
            return bytes(data)


class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to public addresses alone."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as it is called
        *options: Any,
        **others: Any,
    ) -> httpcore.AsyncNetworkStream:
        """See `httpcore`. Raises `BadPicture` for a host that has an address which is private."""
        addresses = await self._resolve(host)
        if not addresses or not all(map(_is_public, addresses)):
            raise BadPicture("is at an address that is not public")
        address = next(iter(addresses))
        return await self._sockets.connect_tcp(address, port, timeout, *options, **others)


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    return found.is_global and not found.is_multicast and (mapped is None or mapped.is_global)
