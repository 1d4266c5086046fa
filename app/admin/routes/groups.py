"""`/admin/groups`: share groups, whose members use one set of prompts."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Required

from msgspec.structs import replace
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from app.admin.declaration import endpoint
from app.admin.documents import Document, GroupDocument, Id, Name
from app.admin.endpoint import Call
from app.admin.lists import Next, PageSize, Query, page
from tenants.records import ShareGroup

_TAG = "Share groups"


class GroupPatch(TypedDict, total=False):
    """What shall be changed, and nothing else."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    name: Annotated[Name, Field(description="For people; the id by default.")]


class NewGroup(GroupPatch, total=False):
    """A group to be, without members: a tenant joins by its `share_group`."""

    id: Required[Id]


class GroupQuery(Query):
    """A page of groups."""

    limit: PageSize = 100
    after: Annotated[Id | None, Field(description="Those behind this id.")] = None


class GroupList(Document):
    """Share groups by id."""

    groups: list[GroupDocument]
    next: Next


class MemberList(Document):
    """The tenants in a share group."""

    members: list[str]


@endpoint("POST", "/groups", _TAG, status=HTTPStatus.CREATED)
async def create_group(call: Call[NewGroup, None]) -> GroupDocument:
    """Create a share group."""
    body = call.body
    group = await call.service.stores.groups.create(body["id"], body.get("name"), actor=call.actor)
    return GroupDocument.of(group)


@endpoint("GET", "/groups", _TAG)
async def list_groups(call: Call[None, GroupQuery]) -> GroupList:
    """List share groups."""
    query = call.query
    found = await call.service.stores.groups.list(query.after, query.limit + 1)
    groups, after = page(found, query.limit, lambda group: group.id)
    return GroupList(groups=[GroupDocument.of(group) for group in groups], next=after)


@endpoint("GET", "/groups/{group}", _TAG)
async def show_group(call: Call[None, None]) -> GroupDocument:
    """Show a share group."""
    return GroupDocument.of(await call.service.stores.groups.get(call.path["group"]))


@endpoint("GET", "/groups/{group}/members", _TAG)
async def list_members(call: Call[None, None]) -> MemberList:
    """List the tenants in a share group."""
    return MemberList(members=await call.service.stores.groups.members(call.path["group"]))


@endpoint("PATCH", "/groups/{group}", _TAG)
async def update_group(call: Call[GroupPatch, None]) -> GroupDocument:
    """Rename a share group."""

    def edit(group: ShareGroup) -> ShareGroup:
        call.require_match(GroupDocument.of(group))
        return replace(group, name=call.body.get("name", group.name))

    groups = call.service.stores.groups
    return GroupDocument.of(await groups.update(call.path["group"], edit, actor=call.actor))


@endpoint("POST", "/groups/{group}/rotate-secret", _TAG)
async def rotate_group_secret(call: Call[None, None]) -> GroupDocument:
    """Give a share group another namespace secret, as a tenant has one."""
    groups = call.service.stores.groups
    return GroupDocument.of(await groups.rotate_secret(call.path["group"], actor=call.actor))


@endpoint("DELETE", "/groups/{group}", _TAG, status=HTTPStatus.NO_CONTENT)
async def delete_group(call: Call[None, None]) -> None:
    """Delete a share group that has no members, with its prompts."""
    await call.service.stores.groups.delete(call.path["group"], actor=call.actor)


ENDPOINTS = [
    create_group,
    list_groups,
    show_group,
    update_group,
    rotate_group_secret,
    delete_group,
    list_members,
]
