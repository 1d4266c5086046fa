"""`/admin/tokens`: make, list and revoke admin tokens; for who may do everything."""

from __future__ import annotations

from http import HTTPStatus

from pydantic import BaseModel, ConfigDict, Field

from app.admin.declaration import endpoint
from app.admin.documents import Document, Id, Lifetime, Name, TokenDocument, expiry
from app.admin.endpoint import Call
from tenants.records import TokenRole

_TAG = "Admin tokens"


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


@endpoint("POST", "/tokens", _TAG, status=HTTPStatus.CREATED)
async def create_token(call: Call[NewToken, None]) -> CreatedToken:
    """Create an admin token."""
    body = call.body
    token, shown = await call.service.stores.operator_tokens.create(
        body.name,
        body.role,
        body.tenant,
        expires_at=expiry(body.expires_in_seconds),
        actor=call.actor,
    )
    return CreatedToken(**TokenDocument.of(token).model_dump(), admin_token=shown)


@endpoint("GET", "/tokens", _TAG)
async def list_tokens(call: Call[None, None]) -> TokenList:
    """List admin tokens.

    Those of the first start and of `--admin-token-file` are not among them.
    """
    tokens = await call.service.stores.operator_tokens.list()
    return TokenList(tokens=[TokenDocument.of(token) for token in tokens])


@endpoint("DELETE", "/tokens/{token}", _TAG, status=HTTPStatus.NO_CONTENT)
async def revoke_token(call: Call[None, None]) -> None:
    """Revoke an admin token.

    It opens nothing from now on, on every replica.
    """
    await call.service.stores.operator_tokens.revoke(call.path["token"], actor=call.actor)


ENDPOINTS = [create_token, list_tokens, revoke_token]
