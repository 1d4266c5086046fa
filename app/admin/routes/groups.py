"""`/admin/groups`: share groups, whose members use one set of prompts."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Required

from msgspec.structs import replace
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from app.admin.documents import Document, GroupDocument, Id, Name
from app.admin.lists import Next, PageQuery, page
from app.admin.parameters import Asking, GroupId, IfMatch, InBody, InQuery, Served
from app.admin.route import operations
from tenants.records import ShareGroup

router = operations("Share groups", "/groups")


class GroupPatch(TypedDict, total=False):
    """What shall be changed, and nothing else."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    name: Annotated[Name, Field(description="For people; the id by default.")]


class NewGroup(GroupPatch, total=False):
    """A group to be, without members: a tenant joins by its `share_group`."""

    id: Required[Id]


class GroupQuery(PageQuery):
    """A page of groups."""

    after: Annotated[Id | None, Field(description="Those behind this id.")] = None


class GroupList(Document):
    """Share groups by id."""

    groups: list[GroupDocument]
    next: Next


class MemberList(Document):
    """The tenants in a share group."""

    members: list[str]


@router.post("", status_code=HTTPStatus.CREATED)
async def create_group(body: InBody[NewGroup], service: Served, by: Asking) -> GroupDocument:
    """Create a share group."""
    group = await service.stores.groups.create(body["id"], body.get("name"), actor=by.name)
    return GroupDocument.of(group)


@router.get("")
async def list_groups(query: InQuery[GroupQuery], service: Served) -> GroupList:
    """List share groups."""
    found = await service.stores.groups.list(query.after, query.limit + 1)
    groups, after = page(found, query.limit, lambda group: group.id)
    return GroupList(groups=[GroupDocument.of(group) for group in groups], next=after)


@router.get("/{group}")
async def show_group(group: GroupId, service: Served) -> GroupDocument:
    """Show a share group."""
    return GroupDocument.of(await service.stores.groups.get(group))


@router.get("/{group}/members")
async def list_members(group: GroupId, service: Served) -> MemberList:
    """List the tenants in a share group."""
    return MemberList(members=await service.stores.groups.members(group))


@router.patch("/{group}")
async def update_group(
    group: GroupId, body: InBody[GroupPatch], expected: IfMatch, service: Served, by: Asking
) -> GroupDocument:
    """Rename a share group."""

    def edit(old: ShareGroup) -> ShareGroup:
        expected.require(GroupDocument.of(old))
        return replace(old, name=body.get("name", old.name))

    return GroupDocument.of(await service.stores.groups.update(group, edit, actor=by.name))


@router.post("/{group}/rotate-secret")
async def rotate_group_secret(group: GroupId, service: Served, by: Asking) -> GroupDocument:
    """Give a share group another namespace secret, as a tenant has one."""
    return GroupDocument.of(await service.stores.groups.rotate_secret(group, actor=by.name))


@router.delete("/{group}", status_code=HTTPStatus.NO_CONTENT)
async def delete_group(group: GroupId, service: Served, by: Asking) -> None:
    """Delete a share group that has no members, with its prompts."""
    await service.stores.groups.delete(group, actor=by.name)
