"""People who sign in at an OpenID provider, and what their tokens let them do in `/admin`."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jwt
import pytest

from app.admin.door import Door
from app.admin.issuer import Issuer
from app.admin.oidc import People
from app.admin.token import AdminToken
from app.assembly.service import create_admin_app
from tests.app.admin.problem import problem
from tests.app.admin.provider import (
    AUDIENCE,
    Provider,
    ec_key,
    providing,
    public_pem,
    rsa_key,
)
from tests.app.conftest import ADMIN_TOKEN, World
from tests.tenants.clock import Clock

KEYS = "/tenants/acme/keys"
SPARE = {"name": "spare"}


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with providing() as provider:
        yield provider


def client_of(world: World, issuer: Issuer) -> httpx.AsyncClient:
    """To the same service, where people of `issuer` may sign in."""
    people = People(issuer, AUDIENCE, "partywall", "console")
    door = Door(AdminToken.of(ADMIN_TOKEN), world.stores.operator_tokens, people)
    app = create_admin_app(world.app.state.service, door)
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://admin/admin")


@pytest.fixture
async def client(world: World, provider: Provider) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(world, Issuer(provider.url, timeout_seconds=2.0)) as client:
        yield client


def bearing(token: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **headers}


async def ask(client: httpx.AsyncClient, token: str, path: str = "/tenants") -> httpx.Response:
    return await client.get(path, headers=bearing(token))


async def is_let_in(client: httpx.AsyncClient, token: str) -> bool:
    answer = await ask(client, token)
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 200


@pytest.mark.parametrize(
    ("roles", "statuses"),
    [
        ("admin", (200, 200, 201)),
        (["staff", "admin"], (200, 200, 201)),
        ("read", (200, 200, 403)),
        (["admin", "read"], (200, 200, 403)),
        ("tenant:acme", (403, 200, 201)),
        (["tenant:acme", "read"], (403, 200, 403)),
        ("openid tenant:acme read", (403, 200, 403)),
        ("tenant:umbra", (403, 403, 403)),
    ],
)
async def test_people_may_do_what_their_claim_says(
    client: httpx.AsyncClient, provider: Provider, roles: Any, statuses: tuple[int, int, int]
) -> None:
    token = provider.token(partywall=roles)
    answers = [await ask(client, token), await ask(client, token, "/tenants/acme")]
    answers.append(await client.post(KEYS, json=SPARE, headers=bearing(token)))
    assert tuple(answer.status_code for answer in answers) == statuses


@pytest.mark.parametrize(
    "roles", [None, "", [], "owner", ["Admin"], 7, True, {"admin": True}, "tenant:", "tenant:A",
              ["tenant:acme", "tenant:umbra"]]
)  # fmt: skip
async def test_nobody_without_a_role_gets_in(
    client: httpx.AsyncClient, provider: Provider, roles: Any
) -> None:
    answer = await ask(client, provider.token(partywall=roles))
    assert problem(answer, 403)["code"] == "no_role"


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "another-service"},
        {"aud": None},
        {"iss": "https://id.example.com"},
        {"iss": None},
        {"exp": 1_700_000_000},
        {"exp": None},
        {"nbf": int(time.time()) + 3600},
        {"sub": None},
        {"sub": 7},
        {"sub": "\ud800"},
        {"sub": "two\nlines"},
        {"exp": float("inf")},
    ],
)
async def test_a_token_that_is_not_for_here_and_now_is_refused(
    client: httpx.AsyncClient, provider: Provider, changed: dict[str, Any]
) -> None:
    answer = await ask(client, provider.token(**changed))
    assert problem(answer, 401)["code"] == "invalid_admin_token"
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_clocks_may_differ_a_little(client: httpx.AsyncClient, provider: Provider) -> None:
    now = int(time.time())
    assert await is_let_in(client, provider.token(exp=now - 5))
    assert await is_let_in(client, provider.token(nbf=now + 5))


def forged(provider: Provider, algorithm: str) -> str:
    """A token that needs no secret to make."""
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    if algorithm == "none":
        return jwt.encode(claims, "", "none", {"kid": "one"})
    parts = [{"alg": algorithm, "kid": "one"}, claims]
    head, body = (base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in parts)
    signer = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signed = signer.sign(head + b"." + body, public_pem(rsa_key()))
    return b".".join([head, body, base64.urlsafe_b64encode(signed).rstrip(b"=")]).decode()


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS256", "RS512", "rs256"])
async def test_what_needs_no_private_key_opens_nothing(
    client: httpx.AsyncClient, provider: Provider, algorithm: str
) -> None:
    assert await is_let_in(client, provider.token())
    assert not await is_let_in(client, forged(provider, algorithm))


async def test_a_token_that_was_changed_is_refused(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    head, _, signature = provider.token(partywall="read").split(".")
    body = provider.token(partywall="admin").split(".")[1]
    assert not await is_let_in(client, f"{head}.{body}.{signature}")
    provider.keys["stranger"] = rsa_key(1)
    token = provider.token("stranger")
    del provider.keys["stranger"]
    assert not await is_let_in(client, token)


@pytest.mark.parametrize(
    "token", ["eyJ.eyJ.x", "eyJ..", f"eyJ{'A' * 9000}.e30.x", "eyJhbGciOiAiUlMyNTYifQ.e30.x"]
)
async def test_nonsense_is_refused(client: httpx.AsyncClient, token: str) -> None:
    assert not await is_let_in(client, token)


async def test_deep_nesting_is_refused(client: httpx.AsyncClient) -> None:
    head = base64.urlsafe_b64encode(b'{"a":' + b"[" * 20_000).rstrip(b"=").decode()
    assert not await is_let_in(client, f"{head}.e30.x")


async def test_both_kinds_of_keys_are_known_and_asked_for_once(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    assert provider.asked == 0
    tokens = [provider.token("one"), provider.token("two")] * 3
    assert all(await asyncio.gather(*(is_let_in(client, token) for token in tokens)))
    assert provider.asked == 1


async def test_a_new_key_is_found_and_a_made_up_one_has_the_provider_asked_no_more(
    world: World, provider: Provider
) -> None:
    clock = Clock()
    async with client_of(world, Issuer(provider.url, clock=clock)) as client:
        assert await is_let_in(client, provider.token())
        clock.now += 6
        provider.keys = {"next": rsa_key(1)}
        assert await is_let_in(client, provider.token("next"))
        assert provider.asked == 2
        provider.keys["made-up"] = ec_key()
        token = provider.token("made-up")
        del provider.keys["made-up"]
        assert not any([await is_let_in(client, token) for _ in range(20)])
        assert provider.asked == 2
        clock.now += 6
        assert not await is_let_in(client, token)
        assert provider.asked == 3


async def test_a_key_that_is_withdrawn_opens_nothing_soon(world: World, provider: Provider) -> None:
    clock = Clock()
    async with client_of(world, Issuer(provider.url, clock=clock)) as client:
        withdrawn = provider.token("two")
        assert await is_let_in(client, withdrawn)
        del provider.keys["two"]
        clock.now += 301
        async with asyncio.timeout(10):
            # The new keys come while the old ones go on.
            while await is_let_in(client, withdrawn):
                pass
        assert await is_let_in(client, provider.token("one"))


async def test_where_the_provider_is_down_tokens_of_this_service_still_hold(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    provider.is_down = True
    answer = await ask(client, provider.token())
    told = problem(answer, 503)
    assert told["code"] == "issuer_unavailable"
    assert "502" in told["detail"]
    assert answer.headers["retry-after"]
    assert await is_let_in(client, ADMIN_TOKEN)
    assert not await is_let_in(client, "pwadmin_not-this-one")
    # It is not asked again at once.
    problem(await ask(client, provider.token()), 503)
    assert provider.asked == 1


async def test_known_keys_hold_for_a_while_without_the_provider(
    world: World, provider: Provider
) -> None:
    clock = Clock()
    async with client_of(world, Issuer(provider.url, clock=clock)) as client:
        assert await is_let_in(client, provider.token())
        provider.is_down = True
        for _ in range(11):
            clock.now += 301
            assert await is_let_in(client, provider.token())
        clock.now += 301
        problem(await ask(client, provider.token()), 503)
        provider.is_down = False
        problem(await ask(client, provider.token()), 503)
        clock.now += 6
        assert await is_let_in(client, provider.token())


async def test_a_slow_provider_keeps_nobody_else_waiting(world: World, provider: Provider) -> None:
    provider.delay_seconds = 3.0
    async with client_of(world, Issuer(provider.url, timeout_seconds=2.0)) as client:
        waiting = asyncio.create_task(ask(client, provider.token()))
        assert await is_let_in(client, ADMIN_TOKEN)
        assert not waiting.done()
        assert "within 2 s" in problem(await waiting, 503)["detail"]


async def test_a_provider_that_nobody_listens_at_is_down(world: World) -> None:
    async with client_of(world, Issuer("http://127.0.0.1:9")) as client:
        token = jwt.encode({"sub": "x"}, rsa_key(), "RS256", {"kid": "one"})
        assert problem(await ask(client, token), 503)["code"] == "issuer_unavailable"


@pytest.mark.parametrize(
    ("configuration", "named"),
    [
        ({"issuer": "http://127.0.0.1:1"}, "calls itself"),
        ({"jwks_uri": "http://id.example.com/keys"}, "https"),
        ({"jwks_uri": 7}, "jwks_uri"),
    ],
)
async def test_a_provider_that_is_not_what_it_should_be_signs_nobody_in(
    client: httpx.AsyncClient, provider: Provider, configuration: dict[str, Any], named: str
) -> None:
    provider.configuration = configuration
    assert named in problem(await ask(client, provider.token()), 503)["detail"]


async def test_a_token_need_not_name_the_only_key(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    token = jwt.encode(claims, rsa_key(), "RS256")
    provider.keys = {"one": rsa_key()}
    assert await is_let_in(client, token)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({}, "oidc:ann@example.com"),
        ({"email_verified": False}, "oidc:248289761001"),
        ({"email_verified": None, "preferred_username": "ann"}, "oidc:ann (248289761001)"),
        ({"email": None, "preferred_username": "a\nb"}, "oidc:248289761001"),
        ({"email": ["a"], "preferred_username": 7}, "oidc:248289761001"),
        ({"email": "\ud800@example.com"}, "oidc:248289761001"),
    ],
)
async def test_the_audit_names_the_person(
    client: httpx.AsyncClient, provider: Provider, claims: dict[str, Any], name: str
) -> None:
    token = provider.token(**claims)
    made = await client.post(KEYS, json=SPARE, headers=bearing(token))
    assert made.status_code == 201, made.text
    entry = (await ask(client, token, "/audit")).json()["entries"][0]
    assert (entry["actor"], entry["action"]) == (name, "key.create")


async def test_an_idempotency_key_is_one_persons(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    async def made(token: str) -> dict[str, Any]:
        headers = bearing(token, **{"idempotency-key": "once"})
        answer = await client.post(KEYS, json=SPARE, headers=headers)
        document: dict[str, Any] = answer.json()
        return document

    first = await made(provider.token())
    assert await made(provider.token(exp=int(time.time()) + 900)) == first
    # The address of somebody who has left may be given to another.
    assert (await made(provider.token(sub="another")))["id"] != first["id"]
    assert (await made(ADMIN_TOKEN))["id"] != first["id"]


async def test_a_page_is_told_where_people_sign_in(
    client: httpx.AsyncClient, provider: Provider
) -> None:
    ends = {"authorization_endpoint": f"{provider.url}/auth", "token_endpoint": "https://x.y/token"}
    provider.configuration = ends
    told = await client.get("/sign-in")
    assert told.json() == {"issuer": provider.url, "client_id": "console", **ends}
    assert (await client.get("/sign-in")).status_code == 200
    assert await is_let_in(client, provider.token())
    assert provider.asked == 1


@pytest.mark.parametrize(
    ("configuration", "status"),
    [
        ({}, 404),
        ({"authorization_endpoint": "https://x.y/auth"}, 404),
        ({"authorization_endpoint": "http://x.y/auth", "token_endpoint": "https://x.y"}, 503),
    ],
)
async def test_no_page_is_sent_where_nobody_can_sign_in(
    client: httpx.AsyncClient, provider: Provider, configuration: dict[str, str], status: int
) -> None:
    provider.configuration = configuration
    problem(await client.get("/sign-in"), status)


async def test_a_page_hears_that_the_provider_is_down_or_that_there_is_none(
    client: httpx.AsyncClient, provider: Provider, admin: httpx.AsyncClient
) -> None:
    provider.is_down = True
    for _ in range(2):
        assert problem(await client.get("/sign-in"), 503)["code"] == "issuer_unavailable"
    assert provider.asked == 1
    assert problem(await admin.get("/sign-in"), 404)["code"] == "not_found"
