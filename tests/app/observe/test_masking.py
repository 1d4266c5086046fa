"""Keys and tokens in no line of the log, wherever a client has put them."""

from __future__ import annotations

import httpx
import pytest

from app.observe.request_fields import masked
from tenants.keys import api_keys
from tests.app.conftest import ADMIN_TOKEN, World
from tests.app.observe.conftest import Log

TOKENS = {
    "pwadmin_0123456789abcdef.kq2-V_83bZ0aHhJ1kq2-V_83bZ0aHhJ1kq2-V_83bZ0": (
        "pwadmin_0123456789abcdef.***"
    ),
    "pwadmin_kq2-V_83bZ0aHhJ1kq2-V_83bZ0aHhJ1kq2-V_83bZ0": "pwadmin_***",
    "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2ln": "eyJ***",
}


@pytest.mark.parametrize("token", TOKENS)
def test_of_a_token_at_most_its_id_is_left(token: str) -> None:
    assert masked(f"/v1/{token}/x?{token}") == f"/v1/{TOKENS[token]}/x?{TOKENS[token]}"


def test_what_is_no_secret_stays_as_it_is() -> None:
    for text in ("pw_acme", "/v1/responses/resp_0123456789abcdef0123", "pw:{acme}:meta", "eyJoin"):
        assert masked(text) == text


async def test_a_key_in_a_path_is_masked_before_the_path_is_cut(world: World, log: Log) -> None:
    key = api_keys.generate()
    shown = key.partition(".")[0] + ".***"
    async with httpx.AsyncClient(base_url=world.base_url) as http:
        await http.get(f"/v1/{key}")
        await http.get(f"/v1/{'x' * 150}/{key}")
    assert (await log.line("request", 1))["path"] == f"/v1/{shown}"
    assert (await log.line("request", 2))["path"].endswith(shown)
    assert key.partition(".")[2][:8] not in log.text


async def test_a_failure_of_ours_tells_its_path_without_the_token(
    world: World, admin: httpx.AsyncClient, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("of our own")

    monkeypatch.setattr(world.app.state.service.stores.tenants, "get_tenant", broken)
    token = f"pwadmin_{'s' * 43}"
    assert (await admin.get(f"/tenants/{token}")).status_code == 500
    assert "of our own" in log.text
    assert "pwadmin_***" in log.text
    assert token not in log.text
    assert ADMIN_TOKEN not in log.text
