"""`/admin/sign-in`: where a page sends people to sign in, as a public client with PKCE."""

from __future__ import annotations

from http import HTTPStatus

from pydantic import Field

from app.admin.parameters import Entry
from app.admin.problems import Problem
from app.admin.route import NEEDS_NO_TOKEN, may_be, operations
from app.admin.wire.documents import Document

router = operations("Signing in")


class SignInDocument(Document):
    """What a page needs to ask the OpenID provider for a token."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    client_id: str = Field(description="Of a public client: there is no secret.")


@router.get("/sign-in", openapi_extra=NEEDS_NO_TOKEN, responses=may_be(HTTPStatus.NOT_FOUND))
async def show_sign_in(door: Entry) -> SignInDocument:
    """Show where people sign in.

    By the authorization code flow with PKCE (RFC 7636), for the scopes `openid email`. 404 where
    the service has no `--oidc-client-id`, or the provider no such flow.
    """
    found = None if door.people is None else await door.people.flow()
    if found is None:
        raise Problem(HTTPStatus.NOT_FOUND, "No page signs people in here.", code="not_found")
    return SignInDocument(
        issuer=found.issuer,
        authorization_endpoint=found.authorization_endpoint,
        token_endpoint=found.token_endpoint,
        client_id=found.client_id,
    )
