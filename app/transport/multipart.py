"""Bodies of `multipart/form-data` (RFC 7578), part by part while they come."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final, NamedTuple
from urllib.parse import unquote

from app.wire.errors import invalid_request

_MOST_HEAD_BYTES = 4096
_MOST_BOUNDARY = 70
_HEAD_END = b"\r\n\r\n"
_BROKEN = "The body is no multipart/form-data, or ends early."
_PARAMETER: Final = re.compile(r';\s*([^\s=;"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;"]*)', re.DOTALL)
"""Of a header, in time that grows with its length: Python's own takes the square of it."""
_ESCAPED: Final = re.compile(r'\\(["\\])')
_EXTENDED: Final = re.compile(r"(utf-8|iso-8859-1)'[^']*'(.*)", re.IGNORECASE | re.DOTALL)
"""A value that is percent-encoded (RFC 8187)."""


class Part(NamedTuple):
    """A part of a body, with its content as it comes."""

    name: str
    filename: str | None
    content: AsyncIterator[bytes]


def boundary_of(content_type: str) -> bytes:
    """What stands between the parts of a body of this type. Raises `ApiError` 400."""
    boundary = _parameters(content_type).get("boundary", "")
    if not 0 < len(boundary) <= _MOST_BOUNDARY or not boundary.isascii():
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
        while (at := self._waiting.find(_HEAD_END)) < 0 and len(self._waiting) <= _MOST_HEAD_BYTES:
            await self._more()
        if not 0 <= at <= _MOST_HEAD_BYTES:
            raise invalid_request(f"A part's headers have more than {_MOST_HEAD_BYTES} bytes.")
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
    for line in head.decode(errors="replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip().lower() == "content-disposition":
            given = _parameters(value)
            return given.get("name", ""), _extended(given) or given.get("filename")
    return "", None


def _parameters(value: str) -> dict[str, str]:
    """What stands behind a header's value, by names in small letters; the first of each."""
    found = dict[str, str]()
    for name, written in _PARAMETER.findall(value):
        is_quoted = written.startswith('"')
        text = _ESCAPED.sub(r"\1", written[1:-1]) if is_quoted else written.rstrip()
        found.setdefault(name.lower(), text)
    return found


def _extended(given: dict[str, str]) -> str | None:
    """A file's name in another alphabet, if it has such a one."""
    written = _EXTENDED.fullmatch(given.get("filename*", ""))
    return None if written is None else unquote(written[2], written[1])
