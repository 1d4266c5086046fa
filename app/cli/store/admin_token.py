"""`partywall token ...`: admin tokens, straight on the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.cli.printing import AsJson, show_line, show_rows
from app.cli.store.store import Confirmed, Lifetime, actor, confirm, store_command, with_stores

if TYPE_CHECKING:
    from tenants.records import OperatorToken

app = typer.Typer(help="Create, list and revoke admin tokens.", no_args_is_help=True)


@store_command(app, "create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what the token is for.")],
    role: Annotated[
        Literal["admin", "read"], typer.Option(help="Everything, or reading alone.")
    ] = "admin",
    tenant: Annotated[
        str | None, typer.Option(help="Of whom alone its holder sees or writes anything.")
    ] = None,
    expires_in_seconds: Lifetime = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Create an admin token, which cannot be read again."""
    from tenants.records import end_of

    end = end_of(expires_in_seconds)
    token, shown = with_stores(
        given,
        lambda stores: stores.operator_tokens.create(
            name, role, tenant, expires_at=end, actor=actor()
        ),
    )
    line = f"new admin token {token.id} for {token.name}, shown once:\n{shown}"
    show_line(_document(token) | {"admin_token": shown}, line, as_json)


@store_command(app, "list")
def list_(as_json: AsJson = False, **given: Any) -> None:
    """List the store's admin tokens, without their secrets."""
    tokens = with_stores(given, lambda stores: stores.operator_tokens.list())
    documents = [_document(token) for token in tokens]
    show_rows(documents, "the store has no admin tokens", as_json)


@store_command(app, "revoke")
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
