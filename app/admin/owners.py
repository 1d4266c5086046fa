"""What tenants and share groups both own, in versions: served by the same handlers at two paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from app.admin.documents import WHOLE
from app.admin.lists import PageQuery, Query
from app.admin.parameters import GroupId, TenantId
from app.admin.route import Handler, operations
from app.context import Service
from tenants.records import ShareGroup, Tenant

_MAX_VERSION = 10**15 - 1

Version = Annotated[int, Field(ge=1, le=_MAX_VERSION), WHOLE]


async def _tenant(tenant: TenantId) -> None:
    """Declares the part of the path that `_owner` reads."""


async def _group(group: GroupId) -> None:
    """The same of a group."""


async def _owner(request: Request) -> str:
    """Under whose name the store keeps what the path means."""
    path = request.path_params
    return path["tenant"] if "tenant" in path else f"@{path['group']}"


Owner = Annotated[str, Depends(_owner)]


class Activation(BaseModel):
    """Which version is to be used."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: Version


class VersionsQuery(PageQuery):
    """A page of versions."""

    after: Annotated[Version | None, Field(description="Those older than this one.")] = None


class VersionQuery(Query):
    """Which version."""

    version: Annotated[Version | None, Field(description="The active one by default.")] = None


def routers(what: str, tag: str, group_tag: str) -> Mapping[str, APIRouter]:
    """Where the operations on tenants' things of a kind are declared, and those on groups'."""
    return {
        "tenant": operations(tag, f"/tenants/{{tenant}}/{what}", dependencies=[Depends(_tenant)]),
        "group": operations(group_tag, f"/groups/{{group}}/{what}", dependencies=[Depends(_group)]),
    }


def for_both_owners(
    routers: Mapping[str, APIRouter],
) -> Callable[..., Callable[[Handler], Handler]]:
    """What declares a handler, by method and end of the path, for the things of both."""

    def operation(method: str, suffix: str, **options: Any) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            verb, _, what = handler.__name__.partition("_")
            for kind, router in routers.items():
                name = f"{verb}_{kind}_{what}"
                router.add_api_route(suffix, handler, methods=[method], name=name, **options)
            return handler

        return declare

    return operation


async def require_owner(service: Service, path: Mapping[str, str]) -> Tenant | ShareGroup:
    """The owner's record. Raises `TenantNotFound` or `GroupNotFound`."""
    if "tenant" in path:
        return await service.stores.tenants.get_tenant(path["tenant"])
    return await service.stores.groups.get(path["group"])
