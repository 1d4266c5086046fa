"""System prompts, of a tenant (`/admin/tenants/{tenant}/prompts`) or of a share group.

Both are served by the same handlers: an owner's prompts are an owner's prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from app.admin.documents import (
    WHOLE,
    Document,
    PromptDocument,
    PromptIndexDocument,
    PromptName,
    PromptWithText,
)
from app.admin.lists import Next, PageQuery, Query, page
from app.admin.parameters import Asking, GroupId, InBody, InQuery, NameInPath, Served, TenantId
from app.admin.problems import clash, complaint
from app.admin.route import Handler, operations
from app.context import Service
from engine.api import EngineError
from tenants.errors import InvalidField, PromptNotFound
from tenants.prompts.system_prompts import MAX_TEXT_BYTES
from tenants.records import SystemPrompt

_MAX_BYTES_A_CHARACTER = 4
_MAX_VERSION = 10**15 - 1

Version = Annotated[int, Field(ge=1, le=_MAX_VERSION), WHOLE]


async def _tenant(tenant: TenantId) -> None:
    """Declares the part of the path that `_owner` reads."""


async def _group(group: GroupId) -> None:
    """The same of a group."""


ROUTERS = {
    "tenant": operations(
        "System prompts", "/tenants/{tenant}/prompts", dependencies=[Depends(_tenant)]
    ),
    "group": operations("Group prompts", "/groups/{group}/prompts", dependencies=[Depends(_group)]),
}


async def _owner(request: Request) -> str:
    """Under whose name the store keeps the prompts that the path means."""
    path = request.path_params
    return path["tenant"] if "tenant" in path else f"@{path['group']}"


Owner = Annotated[str, Depends(_owner)]


class NewPrompt(BaseModel):
    """A text, and whether it is to be used at once."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(
        min_length=1,
        max_length=MAX_TEXT_BYTES // _MAX_BYTES_A_CHARACTER,
        description="What stands before the first {{variable}} is shared.",
    )
    activate: bool = Field(True, description="Use it where a request names no version.")


class Activation(BaseModel):
    """Which version is to be used."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: Version


class PromptQuery(PageQuery):
    """A page of prompts."""

    after: Annotated[PromptName | None, Field(description="Those behind this name.")] = None


class VersionsQuery(PageQuery):
    """A page of versions."""

    after: Annotated[Version | None, Field(description="Those older than this one.")] = None


class VersionQuery(Query):
    """Which version."""

    version: Annotated[Version | None, Field(description="The active one by default.")] = None


class PromptList(Document):
    """System prompts by name, each in its active version."""

    prompts: list[PromptDocument]
    next: Next


class VersionList(Document):
    """The versions of a system prompt, the newest first."""

    versions: list[PromptDocument]
    next: Next


def _for_both_owners(method: str, suffix: str, **options: Any) -> Callable[[Handler], Handler]:
    """Declare a handler for the prompts of tenants, and for those of share groups."""

    def declare(handler: Handler) -> Handler:
        verb, _, what = handler.__name__.partition("_")
        for kind, router in ROUTERS.items():
            name = f"{verb}_{kind}_{what}"
            router.add_api_route(suffix, handler, methods=[method], name=name, **options)
        return handler

    return declare


@_for_both_owners("GET", "")
async def list_prompts(
    owner: Owner, query: InQuery[PromptQuery], service: Served, request: Request
) -> PromptList:
    """List system prompts."""
    await _require_owner(service, request.path_params)
    found = await service.stores.prompts.list(owner, query.after, query.limit + 1)
    prompts, after = page(found, query.limit, lambda prompt: prompt.name)
    return PromptList(prompts=[await _shown(service, owner, one) for one in prompts], next=after)


@_for_both_owners("PUT", "/{name}")
async def put_prompt(
    owner: Owner, name: NameInPath, body: InBody[NewPrompt], service: Served, by: Asking
) -> PromptDocument:
    """Register a system prompt, or a new version of it.

    The text of the newest version, put again, makes no new one. Running services compute the
    active version's KV blocks at once; `warm` waits for that.
    """
    prompt = await service.stores.prompts.put(
        owner, name, body.text, activate=body.activate, actor=by.name
    )
    return await _shown(service, owner, prompt)


@_for_both_owners("GET", "/{name}")
async def show_prompt(
    owner: Owner, name: NameInPath, query: InQuery[VersionQuery], service: Served
) -> PromptWithText:
    """Show a system prompt and its text."""
    prompts = service.stores.prompts
    prompt = await prompts.get(owner, name, query.version)
    if prompt is None:
        raise PromptNotFound(name, query.version)
    return PromptWithText.with_index(prompt, await prompts.newest_index(owner, prompt))


@_for_both_owners("GET", "/{name}/versions")
async def list_prompt_versions(
    owner: Owner, name: NameInPath, query: InQuery[VersionsQuery], service: Served
) -> VersionList:
    """List the versions of a system prompt."""
    found = await service.stores.prompts.versions(owner, name, query.after, query.limit + 1)
    versions, after = page(found, query.limit, lambda prompt: prompt.version)
    return VersionList(versions=[await _shown(service, owner, one) for one in versions], next=after)


@_for_both_owners("POST", "/{name}/activate")
async def activate_prompt(
    owner: Owner, name: NameInPath, body: InBody[Activation], service: Served, by: Asking
) -> PromptDocument:
    """Activate a version.

    It is the one that requests get which name none.
    """
    prompt = await service.stores.prompts.activate(owner, name, body.version, actor=by.name)
    return await _shown(service, owner, prompt)


@_for_both_owners("POST", "/{name}/warm")
async def warm_prompt(owner: Owner, name: NameInPath, service: Served) -> PromptIndexDocument:
    """Warm a system prompt.

    The active version's KV blocks are computed, in this replica; the answer comes when they are
    there.
    """
    try:
        index = await service.warmer.warm(owner, name)
    except InvalidField as error:
        raise clash(complaint(error)) from error
    return PromptIndexDocument.of(index)


@_for_both_owners("POST", "/{name}/pin")
async def pin_prompt(owner: Owner, name: NameInPath, service: Served, by: Asking) -> PromptDocument:
    """Pin a system prompt.

    The active version's KV blocks stay in memory, from now on and on every replica. Refused, and
    not pinned, where they do not fit: `limits.pinned_blocks` of the tenant, or the engine's memory.
    """
    prompts = service.stores.prompts
    before = await prompts.get(owner, name)
    pinned = await prompts.set_pinned(owner, name, True, actor=by.name)
    try:
        index = await service.warmer.warm(owner, name)
    except (InvalidField, EngineError) as error:
        if before is None or not before.pinned:
            await prompts.set_pinned(owner, name, False, actor=by.name)
        raise clash(complaint(error)) if isinstance(error, InvalidField) else error from error
    return PromptDocument.with_index(pinned, index)


@_for_both_owners("POST", "/{name}/unpin")
async def unpin_prompt(
    owner: Owner, name: NameInPath, service: Served, by: Asking
) -> PromptDocument:
    """Unpin a system prompt.

    Its KV blocks may be evicted like any others.
    """
    prompt = await service.stores.prompts.set_pinned(owner, name, False, actor=by.name)
    return await _shown(service, owner, prompt)


@_for_both_owners("DELETE", "/{name}", status_code=HTTPStatus.NO_CONTENT)
async def delete_prompt(owner: Owner, name: NameInPath, service: Served, by: Asking) -> None:
    """Delete a system prompt in all its versions."""
    await service.stores.prompts.delete(owner, name, actor=by.name)


async def _require_owner(service: Service, path: Mapping[str, str]) -> None:
    """Raises `TenantNotFound` or `GroupNotFound`."""
    if "tenant" in path:
        await service.stores.tenants.get_tenant(path["tenant"])
    else:
        await service.stores.groups.get(path["group"])


async def _shown(service: Service, owner: str, prompt: SystemPrompt) -> PromptDocument:
    return PromptDocument.with_index(
        prompt, await service.stores.prompts.newest_index(owner, prompt)
    )
