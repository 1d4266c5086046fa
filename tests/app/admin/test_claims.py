"""Which of a provider's signed tokens show who somebody is: by kind, client and lifetime."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import jwt
import pytest

from app.admin.issuer import Issuer
from app.admin.oidc import People
from app.admin.problems import Problem
from app.assembly.parts import service_people
from app.settings import load_settings
from tests.app.admin.provider import AUDIENCE, Provider, providing

DAY = 86_400


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with providing() as provider:
        yield provider


async def refusal(people: People, token: str) -> str | None:
    """Why a token is no good; `None` where it is."""
    try:
        await people.operator(token)
    except Problem as problem:
        return problem.detail if problem.status == 401 else None
    return None


def typed(provider: Provider, typ: str) -> str:
    """A token whose header says of what kind it is."""
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    return jwt.encode(claims, provider.keys["one"], "RS256", {"kid": "one", "typ": typ})


async def test_access_and_id_tokens_are_taken_and_no_others(provider: Provider) -> None:
    people = People(Issuer(provider.url), AUDIENCE, "partywall")
    for typ in ("JWT", "at+jwt", "application/at+JWT", "id_token+jwt"):
        assert await refusal(people, typed(provider, typ)) is None
    for typ in ("logout+jwt", "secevent+jwt", "dpop+jwt", "application/json"):
        assert "typ" in str(await refusal(people, typed(provider, typ)))
    for word in ("Bearer", "ID"):
        assert await refusal(people, provider.token(typ=word)) is None
    for wrong in ("Refresh", "Offline", "Logout", "", 7, ["Bearer"]):
        assert "typ" in str(await refusal(people, provider.token(typ=wrong)))


OURS: list[dict[str, Any]] = [
    {"azp": "console"},
    {"azp": "tool"},
    {"azp": AUDIENCE},
    {"client_id": "tool"},
    {},
    {"aud": [AUDIENCE]},
    {"aud": [AUDIENCE, "account"], "azp": "console"},
]
OTHERS: list[dict[str, Any]] = [
    {"azp": "game"},
    {"azp": "game", "client_id": "console"},
    {"azp": ["console"]},
    {"client_id": "game"},
    {"aud": [AUDIENCE, "account"]},
]


async def test_a_token_that_another_client_was_given_is_refused(provider: Provider) -> None:
    people = People(Issuer(provider.url), AUDIENCE, "partywall", "console", ["tool"])
    for claims in OURS:
        assert await refusal(people, provider.token(**claims)) is None
    for claims in OTHERS:
        assert "azp" in str(await refusal(people, provider.token(**claims)))


async def test_any_client_of_the_provider_will_do_where_none_is_named(provider: Provider) -> None:
    people = People(Issuer(provider.url), AUDIENCE, "partywall")
    for claims in (*OURS, *OTHERS):
        assert await refusal(people, provider.token(**claims)) is None


def lasting(seconds: int, **changed: Any) -> Mapping[str, Any]:
    now = int(time.time())
    return {"iat": now, "exp": now + seconds, **changed}


async def test_a_token_that_lasts_too_long_is_refused(provider: Provider) -> None:
    people = People(Issuer(provider.url), AUDIENCE, "partywall")
    assert await refusal(people, provider.token(**lasting(DAY))) is None
    assert "86400" in str(await refusal(people, provider.token(**lasting(DAY + 1))))
    assert "iat" in str(await refusal(people, provider.token(**lasting(60, iat=None))))
    hasty = People(Issuer(provider.url), AUDIENCE, "partywall", most_seconds=300)
    assert await refusal(hasty, provider.token(**lasting(300))) is None
    assert "300" in str(await refusal(hasty, provider.token(**lasting(301))))


async def test_settings_name_clients_and_the_longest_lifetime(provider: Provider) -> None:
    people = service_people(
        load_settings(
            oidc_issuer=provider.url,
            oidc_audience=AUDIENCE,
            oidc_clients="tool, other",
            oidc_max_token_seconds="600",
        )
    )
    assert people is not None
    assert await refusal(people, provider.token(azp="other")) is None
    assert "azp" in str(await refusal(people, provider.token(azp="console")))
    assert "600" in str(await refusal(people, provider.token(**lasting(601, azp="tool"))))
