"""System prompts, of a tenant (`/admin/tenants/{tenant}/prompts`) or of a share group.

Both are served by the same handlers: an owner's prompts are an owner's prompts.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from app.admin.documents import (
    Document,
    PromptDocument,
    PromptIndexDocument,
    PromptName,
    PromptWithText,
)
from app.admin.lists import Next, PageQuery, page
from app.admin.owners import (
    Activation,
    Owner,
    VersionQuery,
    VersionsQuery,
    for_both_owners,
    require_owner,
    routers,
)
from app.admin.parameters import Asking, InBody, InQuery, NameInPath, Served
from app.admin.problems import clash, complaint
from app.context import Service
from engine.api import EngineError
from tenants.errors import InvalidField, PromptNotFound
from tenants.prompts.system_prompts import MAX_TEXT_BYTES
from tenants.records import SystemPrompt

_MAX_BYTES_A_CHARACTER = 4

ROUTERS = routers("prompts", "System prompts", "Group prompts")
_operation = for_both_owners(ROUTERS)


class NewPrompt(BaseModel):
    """A text, and whether it is to be used at once."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(
        min_length=1,
        max_length=MAX_TEXT_BYTES // _MAX_BYTES_A_CHARACTER,
        description="What stands before the first {{variable}} is shared.",
    )
    adapter: PromptName | None = Field(
        None, description="The adapter that is meant where a request with it names none."
    )
    activate: bool = Field(True, description="Use it where a request names no version.")


class PromptQuery(PageQuery):
    """A page of prompts."""

    after: Annotated[PromptName | None, Field(description="Those behind this name.")] = None


class PromptList(Document):
    """System prompts by name, each in its active version."""

    prompts: list[PromptDocument]
    next: Next


class VersionList(Document):
    """The versions of a system prompt, the newest first."""

    versions: list[PromptDocument]
    next: Next


@_operation("GET", "")
async def list_prompts(
    owner: Owner, query: InQuery[PromptQuery], service: Served, request: Request
) -> PromptList:
    """List system prompts."""
    await require_owner(service, request.path_params)
    found = await service.stores.prompts.list(owner, query.after, query.limit + 1)
    prompts, after = page(found, query.limit, lambda prompt: prompt.name)
    return PromptList(prompts=[await _shown(service, owner, one) for one in prompts], next=after)


@_operation("PUT", "/{name}")
async def put_prompt(
    owner: Owner, name: NameInPath, body: InBody[NewPrompt], service: Served, by: Asking
) -> PromptDocument:
    """Register a system prompt, or a new version of it.

    What the newest version says, put again, makes no new one. Running services compute the
    active version's KV blocks at once; `warm` waits for that.
    """
    prompt = await service.stores.prompts.put(
        owner,
        name,
        body.text,
        adapter=body.adapter,
        activate=body.activate,
        actor=by.name,
    )
    return await _shown(service, owner, prompt)


@_operation("GET", "/{name}")
async def show_prompt(
    owner: Owner, name: NameInPath, query: InQuery[VersionQuery], service: Served
) -> PromptWithText:
    """Show a system prompt and its text."""
    prompts = service.stores.prompts
    prompt = await prompts.get(owner, name, query.version)
    if prompt is None:
        raise PromptNotFound(name, query.version)
    return PromptWithText.with_index(prompt, await prompts.newest_index(owner, prompt))


@_operation("GET", "/{name}/versions")
async def list_prompt_versions(
    owner: Owner, name: NameInPath, query: InQuery[VersionsQuery], service: Served
) -> VersionList:
    """List the versions of a system prompt."""
    found = await service.stores.prompts.versions(owner, name, query.after, query.limit + 1)
    versions, after = page(found, query.limit, lambda prompt: prompt.version)
    return VersionList(versions=[await _shown(service, owner, one) for one in versions], next=after)


@_operation("POST", "/{name}/activate")
async def activate_prompt(
    owner: Owner, name: NameInPath, body: InBody[Activation], service: Served, by: Asking
) -> PromptDocument:
    """Activate a version.

    It is the one that requests get which name none.
    """
    prompt = await service.stores.prompts.activate(owner, name, body.version, actor=by.name)
    return await _shown(service, owner, prompt)


@_operation("POST", "/{name}/warm")
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


@_operation("POST", "/{name}/pin")
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


@_operation("POST", "/{name}/unpin")
async def unpin_prompt(
    owner: Owner, name: NameInPath, service: Served, by: Asking
) -> PromptDocument:
    """Unpin a system prompt.

    Its KV blocks may be evicted like any others.
    """
    prompt = await service.stores.prompts.set_pinned(owner, name, False, actor=by.name)
    return await _shown(service, owner, prompt)


@_operation("DELETE", "/{name}", status_code=HTTPStatus.NO_CONTENT)
async def delete_prompt(owner: Owner, name: NameInPath, service: Served, by: Asking) -> None:
    """Delete a system prompt in all its versions."""
    await service.stores.prompts.delete(owner, name, actor=by.name)


async def _shown(service: Service, owner: str, prompt: SystemPrompt) -> PromptDocument:
    return PromptDocument.with_index(
        prompt, await service.stores.prompts.newest_index(owner, prompt)
    )
