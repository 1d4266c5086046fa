"""What leaves with a client comes back as it was, to the same tenant, or not at all."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from openai import BadRequestError

from app.prompt.sealing import decrypt_thought, encrypt_thought
from tenants.records import SECRET_BYTES, Tenant
from tests.app.conftest import MODEL, World


def tenant(name: str) -> Tenant:
    secret = name.encode().ljust(SECRET_BYTES, b"x")
    return Tenant(id=name, name=name, namespace_secret=secret, created_at=time.time())


@pytest.mark.parametrize("text", ["", "hm", "ä\n" * 1000])
def test_a_thought_comes_back_as_it_was(text: str) -> None:
    sealed = encrypt_thought(tenant("acme"), text)
    assert decrypt_thought(tenant("acme"), sealed) == text
    assert decrypt_thought(tenant("umbra"), sealed) is None
    assert encrypt_thought(tenant("acme"), text) != sealed


def test_a_thought_that_was_tampered_with_is_none() -> None:
    raw = urlsafe_b64decode(encrypt_thought(tenant("acme"), "Tuesday"))
    assert b"Tuesday" not in raw
    for index in range(len(raw)):
        changed = bytes([*raw[:index], raw[index] ^ 1, *raw[index + 1 :]])
        assert decrypt_thought(tenant("acme"), urlsafe_b64encode(changed).decode()) is None
    for wrong in ("", "x", "ä", "AAAA", urlsafe_b64encode(raw[:-1]).decode()):
        assert decrypt_thought(tenant("acme"), wrong) is None


async def test_only_what_was_sealed_for_a_tenant_is_taken_from_it(world: World) -> None:
    sealed = encrypt_thought(world.tenants["acme"], "hm")
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
    said: Any = [{"role": "user", "content": "one"}, thought]
    await world.client().responses.create(model=MODEL, input=said, store=False)
    for name, content in (("umbra", sealed), ("acme", f"{sealed[:-4]}AAA=")):
        client, thought["encrypted_content"] = world.client(name), content
        with pytest.raises(BadRequestError) as refused:
            await client.responses.create(model=MODEL, input=said, store=False)
        assert refused.value.code == "invalid_encrypted_content"
        assert refused.value.param == "input[1].encrypted_content"
