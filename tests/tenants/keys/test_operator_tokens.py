"""Tokens of operators in the store: only their holders have them, and nobody makes one there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
import redis

from tenants import redis_keys
from tenants.at_rest import pepper_record
from tenants.at_rest.pepper import Peppers
from tenants.errors import InvalidField, PepperMismatch, StoreConflict, TokenNotFound
from tenants.keys import operator_tokens
from tenants.keys.operator_tokens import OperatorTokens
from tenants.records import OperatorToken
from tenants.rotation.rotation import Left, Rotation
from tests.tenants.conftest import Room, everything

KEY = redis_keys.OPERATOR_TOKENS


@pytest.fixture
def tokens(room: Room, peppers: Peppers) -> OperatorTokens:
    return OperatorTokens(room.redis, peppers)


async def test_a_token_is_found_by_itself_alone(room: Room, tokens: OperatorTokens) -> None:
    await room.store.create_tenant("acme")
    record, token = await tokens.create("ci", "read", "acme", expires_at=time.time() + 60)
    assert token.startswith(f"pwadmin_{record.id}.")
    assert (record.name, record.role, record.tenant) == ("ci", "read", "acme")
    assert await tokens.find(token) == record
    other, _ = await tokens.create("ci")
    for wrong in (
        *("", "pwadmin_", token[:-1], token + "x", token[:-2] + "__", token.upper(), f" {token}"),
        token.replace(record.id, other.id),
        token.replace(record.id, "0" * 16),
    ):
        assert await tokens.find(wrong) is None
    assert await tokens.list() == [other, record]


async def test_the_token_is_nowhere_in_the_store(tokens: OperatorTokens, raw: redis.Redis) -> None:
    record, token = await tokens.create("ci")
    held = b"".join([*everything(raw).values()])
    assert token.partition(".")[2].encode() not in held
    assert record.digest not in held


async def test_what_is_revoked_or_over_opens_nothing(
    tokens: OperatorTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, token = await tokens.create("ci")
    _, short = await tokens.create("guest", expires_at=time.time() + 0.2)
    assert await tokens.find(short) is not None
    await tokens.revoke(record.id)
    assert await tokens.find(token) is None
    with pytest.raises(TokenNotFound, match=record.id):
        await tokens.revoke(record.id)
    await asyncio.sleep(0.21)
    assert await tokens.find(short) is None
    assert [one.name for one in await tokens.list()] == ["guest"]
    monkeypatch.setattr(operator_tokens, "MAX_TOKENS", 1)
    newest, _ = await tokens.create("last")
    assert await tokens.list() == [newest]
    with pytest.raises(StoreConflict, match="1 admin token"):
        await tokens.create("one too many")


async def test_two_who_make_one_at_once_both_have_theirs(tokens: OperatorTokens) -> None:
    made = await asyncio.gather(*(tokens.create(f"ci {number}") for number in range(8)))
    assert len(await tokens.list()) == 8
    assert None not in [await tokens.find(token) for _, token in made]


async def test_the_audit_says_who_made_and_who_revoked(room: Room, tokens: OperatorTokens) -> None:
    record, _ = await tokens.create("ci", "read", actor="ann")
    await tokens.revoke(record.id, actor="bob")
    revoked, created = await room.audit.read()
    assert (created.actor, created.action, created.target) == ("ann", "token.create", record.id)
    assert (revoked.actor, revoked.action, revoked.target) == ("bob", "token.revoke", record.id)
    shown = msgspec.to_builtins(record)
    del shown["digest"]
    assert (created.before, created.after) == (None, shown)
    assert (revoked.before, revoked.after) == (shown, None)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "two\nlines"}, "name"),
        ({"name": ""}, "name"),
        ({"tenant_id": "ACME"}, "tenant"),
        ({"expires_at": 5.0}, "expires_at"),
    ],
)
async def test_a_bad_field_is_named(
    tokens: OperatorTokens, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        await tokens.create(**{"name": "ci", **given})
    assert caught.value.field == field
    assert await tokens.list() == []


async def test_who_writes_to_redis_makes_no_token(tokens: OperatorTokens, raw: redis.Redis) -> None:
    everything_, _ = await tokens.create("all")
    reader, token = await tokens.create("reader", "read")
    good = raw.hget(KEY, reader.id)
    assert isinstance(good, bytes)
    admin = msgspec.structs.replace(reader, role="admin")
    for forged in (
        msgspec.msgpack.encode(admin),
        msgspec.json.encode(admin),
        b"",
        good[:-1],
        good[:-1] + bytes([good[-1] ^ 1]),
        raw.hget(KEY, everything_.id),
    ):
        raw.hset(KEY, reader.id, forged)  # type: ignore[arg-type]
        assert await tokens.find(token) is None
        assert await tokens.list() == [everything_]
    raw.hset(KEY, reader.id, good)
    assert await tokens.find(token) == reader
    raw.hset(KEY, reader.id, b"broken")
    await tokens.revoke(reader.id)
    assert raw.hkeys(KEY) == [everything_.id.encode()]


async def test_a_token_outlives_a_pepper(room: Room, raw: redis.Redis) -> None:
    old, new = Peppers(b"o" * 32), Peppers(b"n" * 32, b"o" * 32)
    record, token = await OperatorTokens(room.redis, old).create("ci")
    with pytest.raises(PepperMismatch):
        await OperatorTokens(room.redis, Peppers(b"x" * 32)).create("ci")
    assert await OperatorTokens(room.redis, new).find(token) == record
    raw.hset(KEY, "0" * 16, b"broken")
    rotation = Rotation(room.redis, new, room.keyring, room.store, room.prompts)
    assert await rotation.run() == Left(rewritten=1, unreadable=[f"{KEY} {'0' * 16}"])
    assert len(await pepper_record.in_use(room.redis)) == 1
    assert await OperatorTokens(room.redis, Peppers(b"n" * 32)).find(token) == record
    assert await OperatorTokens(room.redis, old).find(token) is None


async def test_a_token_ends_with_the_tenant_that_it_is_held_to(
    room: Room, tokens: OperatorTokens
) -> None:
    with pytest.raises(InvalidField, match="tenant"):
        await tokens.create("early", tenant_id="acme")
    await room.store.create_tenant("acme")
    await room.store.create_tenant("umbra")
    _, held = await tokens.create("ci", tenant_id="acme")
    kept = [await tokens.create("all"), await tokens.create("other", tenant_id="umbra")]
    await room.store.delete_tenant("acme", actor="ann")
    await room.store.create_tenant("acme")
    assert await tokens.find(held) is None
    assert [await tokens.find(token) for _, token in kept] == [record for record, _ in kept]
    entries = await room.audit.read()
    assert ("token.revoke", "ann") in [(one.action, one.actor) for one in entries]


async def test_no_tenant_lies_in_the_slot_of_tokens(room: Room, tokens: OperatorTokens) -> None:
    _, token = await tokens.create("ci")
    for name in ("operators", "tokens"):
        await room.store.create_tenant(name)
        await room.store.delete_tenant(name)
    found = await tokens.find(token)
    assert isinstance(found, OperatorToken)
