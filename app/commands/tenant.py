"""`partywall tenant ...`: straight on the store, whether the service runs or not."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.commands.errors import CommandError
from app.commands.options import settings_command
from app.commands.store import STORE_FIELDS, AsJson, print_json, print_table, with_stores

app = typer.Typer(help="Create, show and delete tenants.", no_args_is_help=True)

TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id.")]


@app.command("create")
@settings_command(STORE_FIELDS)
def create(
    tenant: TenantId,
    name: Annotated[str | None, typer.Option(help="Name for people; the id by default.")] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Create a tenant and print its API key, which cannot be read again."""
    from app.documents import tenant_document

    created, api_key = with_stores(given, lambda stores: stores.tenants.create_tenant(tenant, name))
    if as_json:
        print_json(tenant_document(created) | {"api_key": api_key})
    else:
        print(f"created tenant {created.id}; its API key, shown once:\n{api_key}")


@app.command("list")
@settings_command(STORE_FIELDS)
def list_(as_json: AsJson = False, **given: Any) -> None:
    """List all tenants."""
    from app.documents import tenant_document

    tenants = with_stores(given, lambda stores: stores.tenants.list_tenants())
    documents = [tenant_document(one) for one in tenants]
    if as_json:
        print_json(documents)
    else:
        print_table(documents, "there are no tenants")


@app.command("show")
@settings_command(STORE_FIELDS)
def show(tenant: TenantId, as_json: AsJson = False, **given: Any) -> None:
    """Show one tenant."""
    from app.documents import tenant_document

    document = tenant_document(with_stores(given, lambda stores: stores.tenants.get_tenant(tenant)))
    if as_json:
        print_json(document)
    else:
        print_table([document], "")


@app.command("rotate-key")
@settings_command(STORE_FIELDS)
def rotate_key(
    tenant: TenantId,
    overlap_seconds: Annotated[
        float, typer.Option(min=0, help="How long the old key stays valid.")
    ] = 0,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Print a new API key; the old one ends now, or after --overlap-seconds."""
    api_key = with_stores(given, lambda stores: stores.tenants.rotate_key(tenant, overlap_seconds))
    if as_json:
        print_json({"id": tenant, "api_key": api_key})
    else:
        print(f"new API key of tenant {tenant}, shown once:\n{api_key}")


@app.command("delete")
@settings_command(STORE_FIELDS)
def delete(
    tenant: TenantId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    **given: Any,
) -> None:
    """Delete a tenant with its keys, prompts and stored responses."""
    if not yes and not typer.confirm(f"Delete tenant {tenant} and everything of it?"):
        raise CommandError("nothing was deleted")
    with_stores(given, lambda stores: stores.tenants.delete_tenant(tenant))
    print(f"deleted tenant {tenant}")
