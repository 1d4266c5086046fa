"""Adapters, of a tenant (`/admin/tenants/{tenant}/adapters`) or of a share group.

Both are served by the same handlers, as system prompts are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal, Self

from fastapi import Request
from pydantic import Field

from app.admin.documents import AdapterDocument, Document, Moment, PromptName
from app.admin.lists import Next, PageQuery, Query, page
from app.admin.owners import (
    Activation,
    Owner,
    VersionQuery,
    VersionsQuery,
    for_both_owners,
    require_owner,
    routers,
)
from app.admin.parameters import AdapterInPath, Asking, Coming, InBody, InQuery, Served
from app.admin.route import StreamedRoute
from app.admin.uploads import BODY, sent_files
from app.context import Service
from engine.adapters.files import AdapterCheck
from engine.api import AdapterState, EngineUnavailable
from tenants.errors import AdapterNotFound
from tenants.records import AdapterRecord, ShareGroup, Tenant

ROUTERS = routers("adapters", "Adapters", "Group adapters")
_operation = for_both_owners(ROUTERS)


class PutQuery(Query):
    """What to do with it."""

    activate: Annotated[bool, Field(description="Have its name mean this version.")] = True


class AdapterQuery(PageQuery):
    """A page of adapters."""

    after: Annotated[PromptName | None, Field(description="Those behind this name.")] = None


class AdapterInEngine(Document):
    """What the engine says of a version, since its start."""

    where: list[Literal["device", "host"]] = Field(
        description="On the device, requests with it need not wait; from the host's memory it is "
        "loaded in a moment. Nowhere: it comes from the store when it is used."
    )
    bytes: int = Field(description="What it takes in either; 0 until it was read.")
    uses: int = Field(description="Requests that have begun with it.")
    used_at: Moment | None = Field(description="When the last one did.")
    fetch_seconds: float | None = Field(
        description="What it took to bring and read it from the store, the last time."
    )
    load_seconds: float | None = Field(
        description="What it took to bring it from the host to the device, the last time."
    )

    @classmethod
    def of(cls, record: AdapterState | None, **own: Any) -> Self:
        """See `Document`; of what the engine does not know."""
        if record is None:
            unknown = dict.fromkeys(("used_at", "fetch_seconds", "load_seconds"))
            return cls(where=[], bytes=0, uses=0, **unknown)
        places: list[tuple[Literal["device", "host"], bool]]
        places = [("device", record.on_device), ("host", record.in_host)]
        idle = record.idle_seconds
        return super().of(
            record,
            where=[name for name, is_there in places if is_there],
            bytes=record.num_bytes,
            used_at=None if idle is None else time.time() - idle,
            **own,
        )


class ServedAdapter(AdapterDocument):
    """A version of an adapter, and what the engine of this replica says of it."""

    engine: AdapterInEngine | None = Field(description="Null while the engine does not answer.")


class AdapterList(Document):
    """Adapters by name, each in its active version."""

    adapters: list[ServedAdapter]
    next: Next


class AdapterVersionList(Document):
    """The versions of an adapter, the newest first."""

    versions: list[ServedAdapter]
    next: Next


@_operation("GET", "")
async def list_adapters(
    owner: Owner, query: InQuery[AdapterQuery], service: Served, request: Request
) -> AdapterList:
    """List adapters."""
    whose = await require_owner(service, request.path_params)
    found = await service.stores.adapters.list(owner, query.after, query.limit + 1)
    adapters, after = page(found, query.limit, lambda adapter: adapter.name)
    return AdapterList(adapters=await _served(service, whose, adapters), next=after)


@_operation("PUT", "/{name}", route_class_override=StreamedRoute, openapi_extra=BODY)
async def put_adapter(
    owner: Owner,
    name: AdapterInPath,
    query: InQuery[PutQuery],
    coming: Coming,
    service: Served,
    by: Asking,
) -> AdapterDocument:
    """Keep an adapter, or a new version of it.

    It is PEFT's two files, in this order, or a folder within the setting `adapter_dir` that has
    both. They are checked as they come, against the model that is served, and nothing is kept of
    what is not right. What acts as the newest version does makes no new one.
    """
    async with sent_files(coming, by, service.bounds) as (config, weights):
        check = AdapterCheck(config, service.engine.info.linears)
        adapter = await service.stores.adapters.put(
            owner, name, config, weights, check, activate=query.activate, actor=by.name
        )
    return AdapterDocument.of(adapter)


@_operation("GET", "/{name}")
async def show_adapter(
    owner: Owner,
    name: AdapterInPath,
    query: InQuery[VersionQuery],
    service: Served,
    request: Request,
) -> ServedAdapter:
    """Show an adapter."""
    adapter = await service.stores.adapters.get(owner, name, query.version)
    if adapter is None:
        raise AdapterNotFound(name, query.version)
    whose = await require_owner(service, request.path_params)
    (shown,) = await _served(service, whose, [adapter])
    return shown


@_operation("GET", "/{name}/versions")
async def list_adapter_versions(
    owner: Owner,
    name: AdapterInPath,
    query: InQuery[VersionsQuery],
    service: Served,
    request: Request,
) -> AdapterVersionList:
    """List the versions of an adapter."""
    found = await service.stores.adapters.versions(owner, name, query.after, query.limit + 1)
    versions, after = page(found, query.limit, lambda adapter: adapter.version)
    whose = await require_owner(service, request.path_params)
    return AdapterVersionList(versions=await _served(service, whose, versions), next=after)


@_operation("POST", "/{name}/activate")
async def activate_adapter(
    owner: Owner, name: AdapterInPath, body: InBody[Activation], service: Served, by: Asking
) -> AdapterDocument:
    """Activate a version of an adapter.

    Its name means this one from now on.
    """
    return AdapterDocument.of(
        await service.stores.adapters.activate(owner, name, body.version, actor=by.name)
    )


@_operation("POST", "/{name}/pin")
async def pin_adapter(
    owner: Owner, name: AdapterInPath, service: Served, by: Asking
) -> AdapterDocument:
    """Pin an adapter.

    Its active version stays in memory once it is there.
    """
    return AdapterDocument.of(
        await service.stores.adapters.set_pinned(owner, name, True, actor=by.name)
    )


@_operation("POST", "/{name}/unpin")
async def unpin_adapter(
    owner: Owner, name: AdapterInPath, service: Served, by: Asking
) -> AdapterDocument:
    """Unpin an adapter.

    It may be evicted like any other.
    """
    return AdapterDocument.of(
        await service.stores.adapters.set_pinned(owner, name, False, actor=by.name)
    )


@_operation("DELETE", "/{name}", status_code=HTTPStatus.NO_CONTENT)
async def delete_adapter(owner: Owner, name: AdapterInPath, service: Served, by: Asking) -> None:
    """Delete an adapter in all its versions."""
    await service.stores.adapters.delete(owner, name, actor=by.name)


async def _served(
    service: Service, whose: Tenant | ShareGroup, adapters: Sequence[AdapterRecord]
) -> list[ServedAdapter]:
    """They, with what the engine says of them, if it answers."""
    told: Sequence[AdapterInEngine | None]
    try:
        states = await service.adapters.states(whose.namespace_key, adapters)
        told = list(map(AdapterInEngine.of, states))
    except EngineUnavailable:
        told = [None] * len(adapters)
    both = zip(adapters, told, strict=True)
    return [ServedAdapter.of(adapter, engine=state) for adapter, state in both]
