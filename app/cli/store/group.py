"""`partywall group ...`: share groups, straight on the store.

A tenant joins with `partywall tenant set TENANT share_group=GROUP`; the group's prompts are put
with `partywall prompt put @GROUP ...`, its adapters with `partywall adapter put @GROUP ...`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli.printing import AsJson, print_json, print_table, show_rows
from app.cli.store.store import Confirmed, actor, confirm, store_command, with_stores

app = typer.Typer(help="Create, list and delete share groups.", no_args_is_help=True)

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The share group's id.")]


@store_command(app, "create")
def create(
    group: GroupId,
    name: Annotated[str | None, typer.Option(help="Name for people; the id by default.")] = None,
    **given: Any,
) -> None:
    """Create a share group. Its members use the prompts and adapters put into it."""
    with_stores(given, lambda stores: stores.groups.create(group, name, actor=actor()))
    print(f"created share group {group}")


@store_command(app, "list")
def list_(as_json: AsJson = False, **given: Any) -> None:
    """List all share groups."""
    from app.admin.documents import GroupDocument

    groups = with_stores(given, lambda stores: stores.groups.list())
    documents = [GroupDocument.of(group).model_dump(mode="json") for group in groups]
    show_rows(documents, "there are no share groups", as_json)


@store_command(app, "members")
def members(group: GroupId, as_json: AsJson = False, **given: Any) -> None:
    """List the tenants in a share group."""
    found = with_stores(given, lambda stores: stores.groups.members(group))
    if as_json:
        print_json(found)
    else:
        print_table([{"tenant": one} for one in found], f"share group {group} has no members")


@store_command(app, "rotate-secret")
def rotate_secret(group: GroupId, yes: Confirmed = False, **given: Any) -> None:
    """Give a group another namespace secret. What it has cached is not found again."""
    confirm(f"Have all that is cached of share group {group} be computed again?", yes)
    with_stores(given, lambda stores: stores.groups.rotate_secret(group, actor=actor()))
    print(f"new namespace secret of share group {group}; now encrypt again: partywall store rotate")


@store_command(app, "delete")
def delete(group: GroupId, yes: Confirmed = False, **given: Any) -> None:
    """Delete a share group without members, and all that is in it."""
    confirm(f"Delete share group {group}, its prompts and its adapters?", yes)
    with_stores(given, lambda stores: stores.groups.delete(group, actor=actor()))
    print(f"deleted share group {group}")
