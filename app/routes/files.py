"""`/v1/files`: pictures that are uploaded once, and named in requests by their ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp

from app.context import Service, identified
from app.routes.list_queries import listed, not_listed, take_page
from app.transport.forms import read_form
from app.transport.http import json_response, unless_gone
from app.transport.server_sent_events import abort_transport
from app.wire.common import parse
from app.wire.errors import ApiError, file_not_found, invalid_request, retry_after
from app.wire.parts.files import PURPOSES, FileForm, FileObject, document_of
from tenants.errors import FileGone, FilesExceeded, StoreConflict, StoreUnavailable
from tenants.records import Principal
from tenants.stored.files import FileRecord, NewFile

MOST_LISTED: Final = 10_000
_READ_AT_ONCE: Final = 64
_FILE: Final = "file"


async def create_file(request: Request) -> ASGIApp:
    """`POST /v1/files`: keep a picture, after a look at it."""
    service, principal = await identified(request)
    tenant = principal.tenant
    service.generations.sight.check_sees(_FILE)
    async with service.generations.counted(principal):
        with service.intake.body(tenant.id) as incoming:
            most_bytes = service.bounds.max_image_bytes
            form = await read_form(request, _FILE, most_bytes, incoming.grow)
            ignores = service.bounds.ignores_unknown(tenant)
            fields = parse(FileForm, document_of(form.texts), ignores_unknown=ignores)
            request.state.ignored = fields.ignored_fields
            if form.file is None:
                message = f"Missing required parameter: '{_FILE}'."
                raise invalid_request(message, _FILE, "missing_required_parameter")
            name, content = form.file
            new = NewFile(content, name, fields.purpose, _seconds(service, fields))
            # Of a file whose client has left nobody would know the id.
            kept = await unless_gone(request, _kept(service, principal, new))
    return json_response(msgspec.json.encode(_shown(kept)))


async def list_files(request: Request) -> ASGIApp:
    """`GET /v1/files`: newest first, unless asked otherwise.

    The query is `purpose`, `limit`, `order` and `after`. All files of the tenant may have to be
    looked at, so that a list counts as a request.
    """
    service, principal = await identified(request)
    given = request.query_params.multi_items()
    purposes = [value for name, value in given if name == "purpose"]
    rest = [one for one in given if one[0] != "purpose"]
    query = take_page(rest, usual=MOST_LISTED, most=MOST_LISTED)
    if purposes and purposes[-1] not in PURPOSES:
        message = f"'purpose' is one of {', '.join(PURPOSES)}."
        raise invalid_request(message, "purpose")
    found, read, is_all = list[FileRecord](), [query.after], False
    async with service.generations.counted(principal):
        while len(found) <= query.limit and not is_all:
            batch = await service.stores.files.listed(
                principal.tenant.id,
                read[-1],
                newest_first=query.newest_first,
                limit=_READ_AT_ONCE,
            )
            if batch is None:  # it has gone: what comes behind the one before it is the same
                gone = read.pop()
                if not read:
                    raise not_listed(gone or "")
                continue
            kept = [one for _, one in batch if one is not None]
            found += [one for one in kept if not purposes or one.purpose == purposes[-1]]
            is_all = not batch
            read += [file_id for file_id, _ in batch]
    shown = [(one.id, _shown(one)) for one in found[: query.limit]]
    page = listed(shown, has_more=len(found) > query.limit)
    return json_response(msgspec.json.encode(page))


async def get_file(request: Request) -> ASGIApp:
    """`GET /v1/files/{file_id}`."""
    _, _, kept = await _found(request)
    return json_response(msgspec.json.encode(_shown(kept)))


async def delete_file(request: Request) -> ASGIApp:
    """`DELETE /v1/files/{file_id}`: it is forgotten, and named in vain from now on."""
    service, principal = await identified(request)
    file_id = request.path_params["file_id"]
    if not await service.stores.files.delete(principal.tenant.id, file_id):
        raise file_not_found(file_id, param="file_id")
    return json_response({"id": file_id, "object": "file", "deleted": True})


async def get_file_content(request: Request) -> ASGIApp:
    """`GET /v1/files/{file_id}/content`: its bytes as they came."""
    service, principal, kept = await _found(request)
    async with service.generations.counted(principal):
        pass
    pieces = service.stores.files.read(principal.tenant.id, kept)

    async def content() -> AsyncIterator[bytes]:
        try:
            async for piece in pieces:
                yield piece
        except (FileGone, StoreUnavailable):
            abort_transport(request.scope)  # a part must not pass for the whole

    headers = {"content-length": str(kept.num_bytes), "content-disposition": "attachment"}
    return StreamingResponse(content(), headers=headers, media_type="application/octet-stream")


async def _found(request: Request) -> tuple[Service, Principal, FileRecord]:
    service, principal = await identified(request)
    file_id = request.path_params["file_id"]
    kept = await service.stores.files.get(principal.tenant.id, file_id)
    if kept is None:
        raise file_not_found(file_id, param="file_id")
    return service, principal, kept


def _seconds(service: Service, fields: FileForm) -> int:
    """For how long a file is kept. Raises `ApiError` for longer than any is."""
    most = service.bounds.response_ttl_seconds
    if fields.expires_after is None:
        return most
    if fields.expires_after.seconds > most:
        message = f"Files are kept for {most} seconds at most."
        raise invalid_request(message, "expires_after.seconds")
    return fields.expires_after.seconds


async def _kept(service: Service, principal: Principal, new: NewFile) -> FileRecord:
    """Raises `ApiError` for what is no picture, and where a tenant may keep no more."""
    await service.generations.sight.check_file(principal.tenant, new.content, _FILE)
    try:
        return await service.stores.files.put(principal.tenant, new)
    except FilesExceeded as error:
        raise invalid_request(f"{error}.", _FILE, "files_exceeded") from error
    except StoreConflict as error:
        message = "The file took too long to be kept. Send it again."
        raise ApiError(409, message, code="file_not_kept", headers=retry_after()) from error


def _shown(kept: FileRecord) -> FileObject:
    return FileObject(
        id=kept.id,
        bytes=kept.num_bytes,
        created_at=int(kept.created_at),
        expires_at=int(kept.expires_at),
        filename=kept.filename,
        purpose=kept.purpose,
    )
