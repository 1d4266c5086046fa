"""Bodies of `multipart/form-data` (RFC 7578), part by part while they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from typing import NamedTuple

from app.wire.errors import invalid_request

_MOST_HEAD_BYTES = 4096
_MOST_BOUNDARY = 70
_HEAD_END = b"\r\n\r\n"
_BROKEN = "The body is no multipart/form-data, or ends early."


class Part(NamedTuple):
    """A part of a body, with its content as it comes."""

    name: str
    filename: str | None
    content: AsyncIterator[bytes]


def boundary_of(content_type: str) -> bytes:
    """What stands between the parts of a body of this type. Raises `ApiError` 400."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if boundary is None or not 0 < len(boundary) <= _MOST_BOUNDARY or not boundary.isascii():
        raise invalid_request("The Content-Type of multipart/form-data has no boundary.")
    return boundary.encode()


async def parts_of(body: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[Part]:
    """Each part; what is not read of it is passed over.

    Raises `ApiError` 400, also while a content is read.
    """
    reader, mark = _Reader(body), b"\r\n--" + boundary
    async for _ in reader.until(mark):
        raise invalid_request(_BROKEN)  # before the first part there is nothing
    while True:
        end = await reader.take(2)
        if end == b"--":
            return
        if end != b"\r\n":
            raise invalid_request(_BROKEN)
        name, filename = _names(await reader.head())
        if not name:
            raise invalid_request("A part of the body has no name.")
        content = reader.until(mark)
        yield Part(name, filename, content)
        async for _ in content:
            pass


class _Reader:
    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        # As if there had been a line before the first part: the others have one.
        self._waiting = bytearray(b"\r\n")

    async def take(self, count: int) -> bytes:
        while len(self._waiting) < count:
            await self._more()
        taken = bytes(self._waiting[:count])
        del self._waiting[:count]
        return taken

    async def head(self) -> bytes:
        """A part's headers."""
        while (at := self._waiting.find(_HEAD_END)) < 0:
            if len(self._waiting) > _MOST_HEAD_BYTES:
                raise invalid_request(f"A part's headers have more than {_MOST_HEAD_BYTES} bytes.")
            await self._more()
        return await self.take(at + len(_HEAD_END))

    async def until(self, mark: bytes) -> AsyncIterator[bytes]:
        """What stands before a mark, which is taken, too."""
        while (at := self._waiting.find(mark)) < 0:
            # The mark may have begun.
            sure = len(self._waiting) - len(mark) + 1
            if sure > 0:
                yield await self.take(sure)
            await self._more()
        if at:
            yield await self.take(at)
        await self.take(len(mark))

    async def _more(self) -> None:
        piece = await anext(self._body, None)
        if piece is None:
            raise invalid_request(_BROKEN)
        self._waiting += piece


def _names(head: bytes) -> tuple[str, str | None]:
    """The name of the part with these headers, empty where it has none, and of its file."""
    headers = HeaderParser().parsestr(head.decode(errors="replace"))
    name = headers.get_param("name", header="content-disposition")
    filename = headers.get_param("filename", header="content-disposition")
    called = None if filename is None else collapse_rfc2231_value(filename)
    return name if isinstance(name, str) else "", called
