"""`partywall token ...`: admin tokens, straight on the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.cli.options import settings_command
from app.cli.printing import AsJson, print_json, show_rows
from app.cli.store.store import STORE_FIELDS, Confirmed, actor, confirm, with_stores

if TYPE_CHECKING:
    from tenants.records import OperatorToken

app = typer.Typer(help="Create, list and revoke admin tokens.", no_args_is_help=True)


@app.command("create")
@settings_command(STORE_FIELDS)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what the token is for.")],
    role: Annotated[
        Literal["admin", "read"], typer.Option(help="Everything, or reading alone.")
    ] = "admin",
    tenant: Annotated[
        str | None, typer.Option(help="Of whom alone its holder sees or writes anything.")
    ] = None,
    expires_in_seconds: Annotated[
        int | None, typer.Option(min=1, help="How long it is valid; for ever by default.")
    ] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Create an admin token, which cannot be read again."""
    end = None if expires_in_seconds is None else time.time() + expires_in_seconds
    token, shown = with_stores(
        given,
        lambda stores: stores.operator_tokens.create(
            name, role, tenant, expires_at=end, actor=actor()
        ),
    )
    if as_json:
        print_json(_document(token) | {"admin_token": shown})
    else:
        print(f"new admin token {token.id} for {token.name}, shown once:\n{shown}")


@app.command("list")
@settings_command(STORE_FIELDS)
def list_(as_json: AsJson = False, **given: Any) -> None:
    """List the store's admin tokens, without their secrets."""
    tokens = with_stores(given, lambda stores: stores.operator_tokens.list())
    documents = [_document(token) for token in tokens]
    show_rows(documents, "the store has no admin tokens", as_json)


@app.command("revoke")
@settings_command(STORE_FIELDS)
def revoke(
    token: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN", help="The token's id: what stands between 'pwadmin_' and the dot."
        ),
    ],
    yes: Confirmed = False,
    **given: Any,
) -> None:
    """End an admin token at once."""
    confirm(f"Revoke admin token {token}?", yes)
    with_stores(given, lambda stores: stores.operator_tokens.revoke(token, actor=actor()))
    print(f"revoked admin token {token}")


def _document(token: OperatorToken) -> dict[str, Any]:
    from app.admin.documents import TokenDocument

    return TokenDocument.of(token).model_dump(mode="json")
