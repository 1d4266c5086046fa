"""System prompts, of a tenant (`/admin/tenants/{tenant}/prompts`) or of a share group.

Both are served by the same handlers: an owner's prompts are an owner's prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from app.admin.declaration import endpoint
from app.admin.documents import (
    WHOLE,
    Document,
    PromptDocument,
    PromptIndexDocument,
    PromptName,
    PromptWithText,
)
from app.admin.endpoint import Call, Endpoint, Handler
from app.admin.lists import Next, PageSize, Query, page
from app.admin.problems import clash, complaint
from engine.api import EngineError
from tenants.errors import InvalidField, PromptNotFound
from tenants.prompts.system_prompts import MAX_TEXT_BYTES
from tenants.records import SystemPrompt

_TAGS = {"tenant": "System prompts", "group": "Group prompts"}
_MAX_BYTES_A_CHARACTER = 4
_MAX_VERSION = 10**15 - 1

Version = Annotated[int, Field(ge=1, le=_MAX_VERSION), WHOLE]

ENDPOINTS: list[Endpoint] = []


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


class PromptQuery(Query):
    """A page of prompts."""

    limit: PageSize = 100
    after: Annotated[PromptName | None, Field(description="Those behind this name.")] = None


class VersionsQuery(Query):
    """A page of versions."""

    limit: PageSize = 100
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
        for kind in ("tenant", "group"):
            verb, _, what = handler.__name__.partition("_")
            declared = endpoint(
                method,
                f"/{kind}s/{{{kind}}}/prompts{suffix}",
                _TAGS[kind],
                name=f"{verb}_{kind}_{what}",
                **options,
            )
            ENDPOINTS.append(declared(handler))
        return handler

    return declare


@_for_both_owners("GET", "")
async def list_prompts(call: Call[None, PromptQuery]) -> PromptList:
    """List system prompts."""
    owner, query = await _existing_owner(call), call.query
    found = await call.service.stores.prompts.list(owner, query.after, query.limit + 1)
    prompts, after = page(found, query.limit, lambda prompt: prompt.name)
    return PromptList(prompts=[await _shown(call, owner, one) for one in prompts], next=after)


@_for_both_owners("PUT", "/{name}")
async def put_prompt(call: Call[NewPrompt, None]) -> PromptDocument:
    """Register a system prompt, or a new version of it.

    The text of the newest version, put again, makes no new one. Running services compute the
    active version's KV blocks at once; `warm` waits for that.
    """
    owner = _owner(call)
    prompt = await call.service.stores.prompts.put(
        owner,
        call.path["name"],
        call.body.text,
        activate=call.body.activate,
        actor=call.actor,
    )
    return await _shown(call, owner, prompt)


@_for_both_owners("GET", "/{name}")
async def show_prompt(call: Call[None, VersionQuery]) -> PromptWithText:
    """Show a system prompt and its text."""
    owner, name = _owner(call), call.path["name"]
    prompts, version = call.service.stores.prompts, call.query.version
    prompt = await prompts.get(owner, name, version)
    if prompt is None:
        raise PromptNotFound(name, version)
    return PromptWithText.of(prompt, await prompts.newest_index(owner, prompt))


@_for_both_owners("GET", "/{name}/versions")
async def list_prompt_versions(call: Call[None, VersionsQuery]) -> VersionList:
    """List the versions of a system prompt."""
    owner, query = _owner(call), call.query
    found = await call.service.stores.prompts.versions(
        owner, call.path["name"], query.after, query.limit + 1
    )
    versions, after = page(found, query.limit, lambda prompt: prompt.version)
    return VersionList(versions=[await _shown(call, owner, one) for one in versions], next=after)


@_for_both_owners("POST", "/{name}/activate")
async def activate_prompt(call: Call[Activation, None]) -> PromptDocument:
    """Activate a version.

    It is the one that requests get which name none.
    """
    owner = _owner(call)
    prompt = await call.service.stores.prompts.activate(
        owner, call.path["name"], call.body.version, actor=call.actor
    )
    return await _shown(call, owner, prompt)


@_for_both_owners("POST", "/{name}/warm")
async def warm_prompt(call: Call[None, None]) -> PromptIndexDocument:
    """Warm a system prompt.

    The active version's KV blocks are computed, in this replica; the answer comes when they are
    there.
    """
    try:
        index = await call.service.warmer.warm(_owner(call), call.path["name"])
    except InvalidField as error:
        raise clash(complaint(error)) from error
    return PromptIndexDocument.of(index)


@_for_both_owners("POST", "/{name}/pin")
async def pin_prompt(call: Call[None, None]) -> PromptDocument:
    """Pin a system prompt.

    The active version's KV blocks stay in memory, from now on and on every replica. Refused, and
    not pinned, where they do not fit: `limits.pinned_blocks` of the tenant, or the engine's memory.
    """
    owner, name, prompts = _owner(call), call.path["name"], call.service.stores.prompts
    before = await prompts.get(owner, name)
    pinned = await prompts.set_pinned(owner, name, True, actor=call.actor)
    try:
        index = await call.service.warmer.warm(owner, name)
    except (InvalidField, EngineError) as error:
        if before is None or not before.pinned:
            await prompts.set_pinned(owner, name, False, actor=call.actor)
        raise clash(complaint(error)) if isinstance(error, InvalidField) else error from error
    return PromptDocument.of(pinned, index)


@_for_both_owners("POST", "/{name}/unpin")
async def unpin_prompt(call: Call[None, None]) -> PromptDocument:
    """Unpin a system prompt.

    Its KV blocks may be evicted like any others.
    """
    owner = _owner(call)
    prompt = await call.service.stores.prompts.set_pinned(
        owner, call.path["name"], False, actor=call.actor
    )
    return await _shown(call, owner, prompt)


@_for_both_owners("DELETE", "/{name}", status=HTTPStatus.NO_CONTENT)
async def delete_prompt(call: Call[None, None]) -> None:
    """Delete a system prompt in all its versions."""
    await call.service.stores.prompts.delete(_owner(call), call.path["name"], actor=call.actor)


def _owner(call: Call[Any, Any]) -> str:
    """Under whose name the store keeps the prompts that the path means."""
    path = call.path
    return path["tenant"] if "tenant" in path else f"@{path['group']}"


async def _existing_owner(call: Call[Any, Any]) -> str:
    stores, path = call.service.stores, call.path
    if "tenant" in path:
        return (await stores.tenants.get_tenant(path["tenant"])).id
    return (await stores.groups.get(path["group"])).owner


async def _shown(call: Call[Any, Any], owner: str, prompt: SystemPrompt) -> PromptDocument:
    return PromptDocument.of(prompt, await call.service.stores.prompts.newest_index(owner, prompt))
