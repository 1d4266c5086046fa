"""Forms (`multipart/form-data`) of short texts and one file, bounded while they come."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from starlette.requests import Request

from app.transport.bodies import content_type, require_plain
from app.transport.large_bodies import large_body
from app.transport.multipart import Part, boundary_of, parts_of
from app.wire.errors import ApiError, invalid_request

FORM: Final = "multipart/form-data"
_MOST_TEXTS: Final = 16
_MOST_TEXT_BYTES: Final = 1024
_MOST_BESIDE_BYTES: Final = 128 * 1024
"""Of a body beside its file."""
_SECONDS: Final = 600.0
_UNNAMED: Final = "upload"


class SentFile(NamedTuple):
    """A file, and what its sender calls it."""

    name: str
    content: bytes


class Form(NamedTuple):
    """Texts by their fields, and the file, if there is one."""

    texts: dict[str, str]
    file: SentFile | None


async def read_form(
    request: Request, file_field: str, max_file_bytes: int, grow: Callable[[int], None]
) -> Form:
    """A request's form, whose file is in `file_field`; `grow` is told of every piece of that, and
    may raise.

    Raises `ApiError` 400, 408, 413 and 415.
    """
    require_plain(request)
    if content_type(request) != FORM:
        raise ApiError(415, f"Send a form ({FORM}).", code="unsupported_media_type")
    boundary = boundary_of(request.headers["content-type"])
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_file_bytes + _MOST_BESIDE_BYTES:
        raise _too_large(file_field, max_file_bytes)
    body = large_body(request, _SECONDS)
    try:
        form = await _read(parts_of(body, boundary), file_field, max_file_bytes, grow)
        rest = 0
        async for piece in body:  # what stands behind a form means nothing
            rest += len(piece)
            if rest > _MOST_BESIDE_BYTES:
                raise _too_large(file_field, max_file_bytes)
    except ApiError as error:
        error.headers["connection"] = "close"  # what is left of the body is not read
        raise
    return form


async def _read(
    parts: AsyncIterator[Part], file_field: str, max_file_bytes: int, grow: Callable[[int], None]
) -> Form:
    texts, file = dict[str, str](), None
    async for part in parts:
        is_file = part.name == file_field
        if part.name in texts or (is_file and file is not None):
            raise invalid_request(f"'{part.name}' is there twice.", part.name)
        if is_file:
            content = await _content(part, max_file_bytes, grow)
            file = SentFile(part.filename or _UNNAMED, content)
        elif len(texts) == _MOST_TEXTS:
            raise invalid_request(f"A form has {_MOST_TEXTS} fields at most, beside its file.")
        else:
            texts[part.name] = await _text(part)
    return Form(texts, file)


async def _content(part: Part, most_bytes: int, grow: Callable[[int], None]) -> bytes:
    content = io.BytesIO()  # which gives its bytes without a copy
    async for piece in part.content:
        if content.tell() + len(piece) > most_bytes:
            raise _too_large(part.name, most_bytes)
        grow(len(piece))
        content.write(piece)
    return content.getvalue()


async def _text(part: Part) -> str:
    content = bytearray()
    async for piece in part.content:
        content += piece
        if len(content) > _MOST_TEXT_BYTES:
            message = f"'{part.name}' has more than {_MOST_TEXT_BYTES} bytes."
            raise invalid_request(message, part.name)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise invalid_request(f"'{part.name}' is no text in UTF-8.", part.name) from None


def _too_large(field: str, most_bytes: int) -> ApiError:
    message = f"'{field}' has more than {most_bytes} bytes."
    headers = {"connection": "close"}
    return ApiError(413, message, code="body_too_large", param=field, headers=headers)
