"""`partywall key ...`: a tenant's API keys, straight on the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.printing import AsJson, show_line, show_rows
from app.cli.store.store import (
    Confirmed,
    Lifetime,
    Overlap,
    TenantId,
    actor,
    confirm,
    store_command,
    with_stores,
)

if TYPE_CHECKING:
    from tenants.records import ApiKey

app = typer.Typer(help="Create, list, rotate and revoke API keys.", no_args_is_help=True)

KeyId = Annotated[
    str, typer.Argument(metavar="KEY", help="The key's id: what stands between 'pw_' and the dot.")
]


@store_command(app, "create")
def create(
    tenant: TenantId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for.")],
    expires_in_seconds: Lifetime = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Create one more API key, which cannot be read again."""
    from tenants.records import end_of

    end = end_of(expires_in_seconds)
    key, api_key = with_stores(
        given, lambda stores: stores.tenants.create_key(tenant, name, expires_at=end, actor=actor())
    )
    _print_new(key, api_key, as_json)


@store_command(app, "list")
def list_(tenant: TenantId, as_json: AsJson = False, **given: Any) -> None:
    """List a tenant's API keys, without their secrets."""
    keys = with_stores(given, lambda stores: stores.tenants.list_keys(tenant))
    documents = [_document(key) for key in keys]
    show_rows(documents, f"tenant {tenant} has no API keys", as_json)


@store_command(app, "rotate")
def rotate(
    tenant: TenantId,
    key: KeyId,
    overlap_seconds: Overlap = 0,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Replace an API key by a new one of the same name."""
    new, api_key = with_stores(
        given, lambda stores: stores.tenants.rotate_key(tenant, key, overlap_seconds, actor=actor())
    )
    _print_new(new, api_key, as_json)


@store_command(app, "revoke")
def revoke(tenant: TenantId, key: KeyId, yes: Confirmed = False, **given: Any) -> None:
    """End an API key, and whatever is open under it, at once."""
    confirm(f"Revoke key {key} of tenant {tenant}?", yes)
    with_stores(given, lambda stores: stores.tenants.revoke_key(tenant, key, actor=actor()))
    print(f"revoked key {key} of tenant {tenant}")


def _print_new(key: ApiKey, api_key: str, as_json: bool) -> None:
    line = f"new API key {key.id} of tenant {key.tenant_id}, shown once:\n{api_key}"
    show_line(_document(key) | {"api_key": api_key}, line, as_json)


def _document(key: ApiKey) -> dict[str, Any]:
    from app.admin.documents import KeyDocument

    return KeyDocument.of(key).model_dump(mode="json")
