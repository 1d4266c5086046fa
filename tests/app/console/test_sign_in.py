"""People sign in to the console at an OpenID provider, and come back to the page they wanted."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from playwright.async_api import Page, expect
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from app.admin.door import Door
from app.admin.issuer import Issuer
from app.admin.oidc import People
from app.admin.token import AdminToken
from app.assembly.service import create_admin_app
from tests.app.admin.provider import AUDIENCE, Provider, providing
from tests.app.conftest import ADMIN_TOKEN, World, serving

CLIENT = "console"


class Entrance:
    """A provider's pages, where one is let in as who is signed in there, and PKCE is checked."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.claims: dict[str, str] = {}
        self.asked: dict[str, str] = {}
        self.error: str | None = None
        provider.configuration |= {
            "authorization_endpoint": f"{provider.url}/authorize",
            "token_endpoint": f"{provider.url}/token",
        }
        provider.app.router.routes += [
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
        ]

    async def _authorize(self, request: Request) -> Response:
        self.asked = dict(request.query_params)
        assert self.asked["client_id"] == CLIENT
        told = {"error": self.error} if self.error else {"code": "once"}
        back = urlencode({"state": self.asked["state"], **told})
        return RedirectResponse(f"{self.asked['redirect_uri']}?{back}")

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        assert challenge == self.asked["code_challenge"]
        assert form["redirect_uri"] == self.asked["redirect_uri"]
        answer = {"access_token": "opaque", "id_token": self.provider.token(**self.claims)}
        return JSONResponse(answer, headers={"access-control-allow-origin": "*"})


@pytest.fixture
async def entrance() -> AsyncIterator[Entrance]:
    async with providing() as provider:
        yield Entrance(provider)


@pytest.fixture
async def url(world: World, entrance: Entrance) -> AsyncIterator[str]:
    """Of the same service, where people sign in."""
    people = People(Issuer(entrance.provider.url), AUDIENCE, "partywall", CLIENT)
    door = Door(AdminToken.of(ADMIN_TOKEN), world.stores.operator_tokens, people)
    async with serving(create_admin_app(world.app.state.service, door)) as (url,):
        yield url


async def test_a_person_signs_in_and_the_audit_has_their_name(
    url: str, page: Page, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    await page.goto(f"{url}/console/#tenants")
    await page.get_by_role("button", name="Sign in with your account").click()
    await page.get_by_role("button", name="New tenant").click()
    assert page.url == f"{url}/console/#tenants"
    await page.get_by_label("Id").fill("zeta")
    await page.get_by_role("button", name="Create the tenant").click()
    await expect(page.get_by_label("The new API key, shown once")).to_be_visible()
    entry = (await admin.get("/audit?owner=zeta")).json()["entries"][0]
    assert entry["actor"] == "oidc:ann@example.com"
    assert [one for one in complaints if "401" not in one] == []
    complaints.clear()  # the access token was tried first, and is none for here


@pytest.mark.exhaustive
async def test_who_has_no_role_or_is_sent_back_is_told_why(
    url: str, page: Page, entrance: Entrance, complaints: list[str]
) -> None:
    entrance.claims = {"partywall": "guest"}
    await page.goto(f"{url}/console/")
    await page.get_by_role("button", name="Sign in with your account").click()
    await expect(page.get_by_role("alert")).to_contain_text("no role")
    entrance.error = "access_denied"
    await page.get_by_role("button", name="Sign in with your account").click()
    await expect(page.get_by_role("alert")).to_contain_text("access_denied")
    await page.goto(f"{url}/console/?code=stolen&state=made-up")
    await expect(page.get_by_role("alert")).to_contain_text("did not ask")
    assert await page.evaluate("sessionStorage.length") == 0
    assert [one for one in complaints if "401" not in one and "403" not in one] == []
    complaints.clear()
