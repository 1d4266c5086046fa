"""The two files of an adapter: in a request, as they come, or in a folder of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Final

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.admin.problems import Complaint, Problem, forbidden, invalid, invalid_request
from app.admin.token import Operator
from app.transport.bodies import content_type, read_body, require_plain
from app.transport.bounds import Bounds
from app.transport.large_bodies import large_body
from app.transport.multipart import Part, boundary_of, parts_of

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
_FORM: Final = "multipart/form-data"
_MOST_CONFIG_BYTES: Final = 1 << 16
_CHUNK_BYTES: Final = 1 << 20
_STEP = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

Files = tuple[bytes, AsyncIterator[bytes]]
"""A configuration, and weights as they come."""


class AdapterFolder(BaseModel):
    """Where both files lie."""

    model_config = ConfigDict(extra="forbid", strict=True)

    folder: str = Field(min_length=1, max_length=1000, description="Within `adapter_dir`.")


BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {
            _FORM: {
                "schema": {
                    "type": "object",
                    "required": [CONFIG, WEIGHTS],
                    "properties": {
                        name: {"type": "string", "contentMediaType": "application/octet-stream"}
                        for name in (CONFIG, WEIGHTS)
                    },
                }
            },
            "application/json": {"schema": AdapterFolder.model_json_schema()},
        },
    }
}
"""As `openapi_extra` of an operation that takes them; the configuration comes first."""


@contextlib.asynccontextmanager
async def sent_files(request: Request, by: Operator, bounds: Bounds) -> AsyncIterator[Files]:
    """What a request sends, or names. Raises `Problem` and `ApiError`, also while it is read."""
    require_plain(request)
    kind = content_type(request)
    if kind == _FORM:
        body = large_body(request)
        yield await _parts(body, boundary_of(request.headers["content-type"]))
    elif kind == "application/json":
        content = await read_body(request, bounds.max_body_bytes)
        with _named(content, by, bounds.adapter_dir) as (config, weights):
            yield config, chunks(weights)
    else:
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Send {_FORM} or JSON (application/json).",
            code="unsupported_media_type",
        )


async def chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """A file's bytes, read beside the event loop."""
    while piece := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield piece


async def _parts(body: AsyncIterator[bytes], boundary: bytes) -> Files:
    parts = parts_of(body, boundary)
    config = bytearray()
    async for part in parts:
        if part.name != CONFIG:
            raise _complain(part.name, f"{CONFIG} comes first, then {WEIGHTS}")
        async for piece in part.content:
            config += piece
            if len(config) > _MOST_CONFIG_BYTES:
                raise _complain(CONFIG, f"has more than {_MOST_CONFIG_BYTES} bytes")
        break
    else:
        raise _complain(CONFIG, "is not there")
    return bytes(config), _weights(parts)


async def _weights(parts: AsyncIterator[Part]) -> AsyncIterator[bytes]:
    """The content of the part that is left."""
    found = False
    async for part in parts:
        if part.name != WEIGHTS or found:
            raise _complain(part.name, f"only {CONFIG} and {WEIGHTS} are taken, once each")
        found = True
        async for piece in part.content:
            yield piece
    if not found:
        raise _complain(WEIGHTS, "is not there")


@contextlib.contextmanager
def _named(content: bytes, by: Operator, base: Path | None) -> Iterator[tuple[bytes, BinaryIO]]:
    if by.tenant is not None:
        raise forbidden(by)  # what lies there is anybody's
    try:
        folder = AdapterFolder.model_validate_json(content).folder
    except ValidationError as error:
        # As FastAPI says where in a request it is.
        found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise invalid_request(found) from None
    if base is None:
        raise _complain("folder", "the service has no adapter_dir")
    with files_in(base, folder) as both:
        yield both


@contextlib.contextmanager
def files_in(base: Path, folder: str) -> Iterator[tuple[bytes, BinaryIO]]:
    """Configuration and weights in a folder within another: no link is followed on the way there.

    Raises `Problem` 422, which says the same for whatever there is instead.
    """
    with contextlib.ExitStack() as stack:
        try:
            at = _opened(stack, os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            for step in folder.split("/"):
                if step in ("", ".", ".."):
                    raise OSError
                at = _opened(stack, os.open(step, _STEP | os.O_DIRECTORY, dir_fd=at))
            config, weights = (_file(stack, at, name) for name in (CONFIG, WEIGHTS))
        except (OSError, ValueError):
            detail = f"has no {CONFIG} and {WEIGHTS} within adapter_dir that can be read"
            raise _complain("folder", detail) from None
        yield config.read(_MOST_CONFIG_BYTES + 1), weights


def _opened(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _file(stack: contextlib.ExitStack, folder: int, name: str) -> BinaryIO:
    # Opening a pipe would wait for who writes to it.
    file = os.fdopen(os.open(name, _STEP | os.O_NONBLOCK, dir_fd=folder), "rb")
    stack.callback(file.close)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise OSError
    return file


def _complain(field: str, detail: str) -> Problem:
    return invalid(Complaint(field=field, detail=detail))
