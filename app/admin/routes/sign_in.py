"""`/admin/sign-in`: where a page sends people to sign in, as a public client with PKCE."""

from __future__ import annotations

from http import HTTPStatus

from pydantic import Field

from app.admin.declaration import endpoint
from app.admin.documents import Document
from app.admin.endpoint import Call
from app.admin.problems import Problem


class SignInDocument(Document):
    """What a page needs to ask the OpenID provider for a token."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    client_id: str = Field(description="Of a public client: there is no secret.")


@endpoint(
    "GET", "/sign-in", "Signing in", needs_token=False, other_problems=(HTTPStatus.NOT_FOUND,)
)
async def show_sign_in(call: Call[None, None]) -> SignInDocument:
    """Show where people sign in.

    By the authorization code flow with PKCE (RFC 7636), for the scopes `openid email`. 404 where
    the service has no `--oidc-client-id`, or the provider no such flow.
    """
    found = None if call.people is None else await call.people.flow()
    if found is None:
        raise Problem(HTTPStatus.NOT_FOUND, "No page signs people in here.", code="not_found")
    return SignInDocument(
        issuer=found.issuer,
        authorization_endpoint=found.authorization_endpoint,
        token_endpoint=found.token_endpoint,
        client_id=found.client_id,
    )


ENDPOINTS = [show_sign_in]
