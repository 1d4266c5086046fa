"""`/admin/tokens`: make, list and revoke admin tokens; for who may do everything.

`/admin/me`: whose a token is, and what it is held to, so that a page offers what it may do.
`/admin/sign-in`: where a page sends people to sign in, as a public client with PKCE.
"""

from __future__ import annotations

from http import HTTPStatus

from pydantic import BaseModel, ConfigDict, Field

from app.admin.documents import Document, Id, Lifetime, Name, TokenDocument
from app.admin.parameters import Asking, Entry, InBody, Served, TokenInPath
from app.admin.problems import Problem
from app.admin.route import NEEDS_NO_TOKEN, may_be, operations
from app.admin.token import OF_ITSELF
from tenants.records import TokenRole, end_of

router = operations("Admin tokens")
signing_in = operations("Signing in")


class NewToken(BaseModel):
    """A token to be."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name = Field(description="Who or what it is for; the audit calls its holder so.")
    role: TokenRole = Field(description="Everything, or reading alone.")
    tenant: Id | None = Field(
        None,
        description="Of whom alone they see anything, and write keys, prompts and adapters.",
    )
    expires_in_seconds: Lifetime = None


class CreatedToken(TokenDocument):
    """A new admin token."""

    admin_token: str = Field(description="Shown once, and never again.")


class TokenList(Document):
    """The admin tokens of the store, the newest first; a dead one may be among them for a while."""

    tokens: list[TokenDocument]


@router.post("/tokens", status_code=HTTPStatus.CREATED)
async def create_token(body: InBody[NewToken], service: Served, by: Asking) -> CreatedToken:
    """Create an admin token."""
    token, shown = await service.stores.operator_tokens.create(
        body.name, body.role, body.tenant, expires_at=end_of(body.expires_in_seconds), actor=by.name
    )
    return CreatedToken.of(token, admin_token=shown)


@router.get("/tokens")
async def list_tokens(service: Served) -> TokenList:
    """List admin tokens.

    Those of the first start and of `--admin-token-file` are not among them.
    """
    tokens = await service.stores.operator_tokens.list()
    return TokenList(tokens=[TokenDocument.of(token) for token in tokens])


@router.delete("/tokens/{token}", status_code=HTTPStatus.NO_CONTENT)
async def revoke_token(token: TokenInPath, service: Served, by: Asking) -> None:
    """Revoke an admin token.

    It opens nothing from now on, on every replica.
    """
    await service.stores.operator_tokens.revoke(token, actor=by.name)


class OperatorDocument(Document):
    """Who asks."""

    name: str = Field(description="As in the audit.")
    role: TokenRole
    tenant: str | None = Field(description="Of whom alone they see anything.")


@router.get(OF_ITSELF)
async def show_me(operator: Asking) -> OperatorDocument:
    """Show who asks, and what they are held to."""
    role: TokenRole = "read" if operator.reads_only else "admin"
    return OperatorDocument(name=operator.name, role=role, tenant=operator.tenant)


class SignInDocument(Document):
    """What a page needs to ask the OpenID provider for a token."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    client_id: str = Field(description="Of a public client: there is no secret.")


@signing_in.get("/sign-in", openapi_extra=NEEDS_NO_TOKEN, responses=may_be(HTTPStatus.NOT_FOUND))
async def show_sign_in(door: Entry) -> SignInDocument:
    """Show where people sign in.

    By the authorization code flow with PKCE (RFC 7636), for the scopes `openid email`. 404 where
    the service has no `--oidc-client-id`, or the provider no such flow.
    """
    people = door.people
    found = None if people is None else await people.flow()
    if people is None or found is None:
        raise Problem(HTTPStatus.NOT_FOUND, "No page signs people in here.", code="not_found")
    return SignInDocument.of(found, client_id=people.client_id)
