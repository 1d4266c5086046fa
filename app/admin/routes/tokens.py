"""`/admin/tokens`: make, list and revoke admin tokens; for who may do everything."""

from __future__ import annotations

from http import HTTPStatus

from pydantic import BaseModel, ConfigDict, Field

from app.admin.parameters import Asking, InBody, Served, TokenInPath
from app.admin.route import operations
from app.admin.wire.documents import Document, Id, Lifetime, Name, TokenDocument, expiry
from tenants.records import TokenRole

router = operations("Admin tokens", "/tokens")


class NewToken(BaseModel):
    """A token to be."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name = Field(description="Who or what it is for; the audit calls its holder so.")
    role: TokenRole = Field(description="Everything, or reading alone.")
    tenant: Id | None = Field(
        None, description="Of whom alone its holder sees anything, and writes keys and prompts."
    )
    expires_in_seconds: Lifetime = None


class CreatedToken(TokenDocument):
    """A new admin token."""

    admin_token: str = Field(description="Shown once, and never again.")


class TokenList(Document):
    """The admin tokens of the store, the newest first; a dead one may be among them for a while."""

    tokens: list[TokenDocument]


@router.post("", status_code=HTTPStatus.CREATED)
async def create_token(body: InBody[NewToken], service: Served, by: Asking) -> CreatedToken:
    """Create an admin token."""
    token, shown = await service.stores.operator_tokens.create(
        body.name,
        body.role,
        body.tenant,
        expires_at=expiry(body.expires_in_seconds),
        actor=by.name,
    )
    return CreatedToken(**TokenDocument.of(token).model_dump(), admin_token=shown)


@router.get("")
async def list_tokens(service: Served) -> TokenList:
    """List admin tokens.

    Those of the first start and of `--admin-token-file` are not among them.
    """
    tokens = await service.stores.operator_tokens.list()
    return TokenList(tokens=[TokenDocument.of(token) for token in tokens])


@router.delete("/{token}", status_code=HTTPStatus.NO_CONTENT)
async def revoke_token(token: TokenInPath, service: Served, by: Asking) -> None:
    """Revoke an admin token.

    It opens nothing from now on, on every replica.
    """
    await service.stores.operator_tokens.revoke(token, actor=by.name)
