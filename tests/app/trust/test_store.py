"""Whoever has the store: line by line what docs/security.md says of its readers and writers.

They have a plain connection to Redis, and not the pepper. What they try is seen through the service
that tenants and operators use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
import pytest
import redis

from tenants import redis_keys
from tenants.errors import TenantNotFound
from tenants.keys.operator_tokens import OperatorTokens
from tenants.records import ApiKey, Change, FormerSecret, OperatorToken
from tenants.storage.changes import encode
from tests.app.conftest import MODEL, PEPPER, World
from tests.app.trust.conftest import KNOWN, SAID, ask, lookup, status_of, taken
from tests.tenants.conftest import everything

# The reader


async def test_a_reader_sees_who_and_how_much_and_neither_texts_nor_anything_that_opens(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    await world.prompts.put("umbra", "law", "umbra-is-a-lawyer")
    token = (await world.stores.operator_tokens.create("ci"))[1]
    world.engine.answer = "umbra-is-told-this"
    assert (await ask(users, world.keys["umbra"])).status_code == 200
    held = b"\0".join(part for pair in everything(raw).items() for part in pair)
    secret = world.tenants["umbra"].namespace_secret
    texts = [SAID, "umbra-is-told-this", "umbra-is-a-lawyer"]
    for hidden in (*texts, world.keys["umbra"], token, token.partition(".")[2]):
        assert hidden.encode() not in held
    for hidden in (secret, PEPPER.current):
        assert hidden not in held
    for seen in (b"umbra", b"law", b"resp_"):
        assert seen in held


# The writer: who is who


async def test_a_key_does_not_move_to_another_tenant(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    response = (await ask(users, world.keys["umbra"])).json()["id"]
    mine, theirs = redis_keys.keys("acme"), redis_keys.keys("umbra")
    raw.copy(mine, theirs, replace=True)
    raw.set(lookup(world.keys["acme"]), "umbra")
    headers = {"authorization": f"Bearer {world.keys['acme']}"}
    found = await users.get(f"/v1/responses/{response}", headers=headers)
    assert found.status_code == 401
    assert await status_of(users, world.keys["umbra"]) == 401  # whose list is gone


async def test_the_pointer_of_a_key_opens_nothing_by_itself(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    for target in ("umbra", "nobody", "@group", "x" * 100, "../*", b"\xff"):
        raw.set(lookup(world.keys["acme"]), target)
        assert await status_of(users, world.keys["acme"]) == 401
    assert await status_of(users, world.keys["umbra"]) == 200


async def test_a_key_that_is_written_in_clear_opens_nothing(
    world: World, raw: redis.Redis, users: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The digest is genuine: the writer has seen it come with a key of their own."""
    (mine,) = await world.stores.tenants.list_keys("acme")
    forged = ApiKey(id=mine.id, tenant_id="umbra", digest=mine.digest, created_at=0)
    raw.set(redis_keys.keys("umbra"), msgspec.msgpack.encode([forged]))
    raw.set(lookup(world.keys["acme"]), "umbra")
    assert await status_of(users, world.keys["acme"]) == 401
    assert "pw:{umbra}:keys" in caplog.text
    assert "partywall store seal" in caplog.text


async def test_a_tenant_is_not_served_from_anothers_record(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    kinds = (redis_keys.meta, redis_keys.keys)
    before = {key(one): taken(raw, key(one)) for key in kinds for one in ("acme", "umbra")}
    raw.set(redis_keys.meta("umbra"), before[redis_keys.meta("acme")])
    assert await status_of(users, world.keys["umbra"]) == 401
    for key in kinds:  # all of it, both ways
        raw.set(key("umbra"), before[key("acme")])
        raw.set(key("acme"), before[key("umbra")])
    raw.set(lookup(world.keys["acme"]), "umbra")
    raw.set(lookup(world.keys["umbra"]), "acme")
    for name in ("acme", "umbra"):
        assert await status_of(users, world.keys[name]) == 401


def known_secret(record: dict[str, Any]) -> None:
    former = FormerSecret(secret=record["namespace_secret"], replaced_at=0)
    record |= {"namespace_secret": KNOWN, "former_secrets": [former]}


def no_limits(record: dict[str, Any]) -> None:
    record["limits"] = {}


def in_a_group(record: dict[str, Any]) -> None:
    record["share_group"] = "law"


def enabled(record: dict[str, Any]) -> None:
    record["status"] = "active"


@pytest.mark.parametrize("edit", [known_secret, no_limits, in_a_group, enabled])
async def test_no_field_of_a_tenant_can_be_written(
    world: World,
    raw: redis.Redis,
    users: httpx.AsyncClient,
    operators: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
    edit: Callable[[dict[str, Any]], None],
) -> None:
    """Even who knows all that is in a record cannot put it there in clear."""
    await world.stores.groups.create("law")
    record: dict[str, Any] = msgspec.structs.asdict(world.tenants["umbra"])
    edit(record)
    raw.set(redis_keys.meta("umbra"), msgspec.msgpack.encode(record))
    assert (await ask(users, world.keys["umbra"])).status_code == 401
    assert not list(raw.scan_iter("pw:{umbra}:response:*"))
    assert await status_of(users, world.keys["acme"]) == 200
    assert "pw:{umbra}:meta is not sealed" in caplog.text
    shown = await operators.get("/tenants/umbra")
    assert (shown.status_code, shown.json()["code"]) == (503, "record_not_readable")
    assert "partywall store seal" in shown.json()["detail"]
    listed = (await operators.get("/tenants")).json()
    assert [one["id"] for one in listed["tenants"]] == ["acme"]
    assert (await operators.delete("/tenants/umbra")).status_code == 200


async def test_a_bit_of_a_tenants_record_or_list_ends_its_service_and_no_others(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    for key in (redis_keys.meta("umbra"), redis_keys.keys("umbra")):
        whole = taken(raw, key)
        for at in range(0, len(whole), 7):
            raw.set(key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert await world.stores.tenants.authenticate(world.keys["umbra"]) is None
        for cut in (0, 1, 40, len(whole) - 1):
            raw.set(key, whole[:cut])
            assert await world.stores.tenants.authenticate(world.keys["umbra"]) is None
        assert await status_of(users, world.keys["umbra"]) == 401
        assert await status_of(users, world.keys["acme"]) == 200
        raw.set(key, whole)
    assert await status_of(users, world.keys["umbra"]) == 200


async def test_a_group_is_its_own_and_members_are_who_say_so_themselves(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    for name in ("law", "other"):
        await world.stores.groups.create(name)
    await world.stores.tenants.update_tenant(
        "umbra", lambda one: msgspec.structs.replace(one, share_group="law")
    )
    raw.sadd(redis_keys.members("@law"), "acme")
    principal = await world.stores.tenants.authenticate(world.keys["acme"])
    assert principal is not None
    assert principal.group is None
    raw.copy(redis_keys.meta("@other"), redis_keys.meta("@law"), replace=True)
    raw.zadd(redis_keys.GROUPS, {b"\xff": 0, "strange}": 0})
    principal = await world.stores.tenants.authenticate(world.keys["umbra"])
    assert principal is not None
    assert principal.group is None
    assert (await ask(users, world.keys["umbra"])).status_code == 200
    assert [one.id for one in await world.stores.groups.list(limit=2)] == ["other"]
    raw.srem(redis_keys.members("@law"), "acme", "umbra")
    await world.stores.groups.delete("law")


async def test_an_answer_that_is_kept_for_an_operator_is_not_another(
    world: World, raw: redis.Redis, operators: httpx.AsyncClient
) -> None:
    headers = {"idempotency-key": "make-one"}

    async def create() -> httpx.Response:
        return await operators.post("/tenants/acme/keys", json={"name": "one"}, headers=headers)

    first = await create()
    assert (await create()).json() == first.json()
    (name,) = raw.scan_iter("pw:idempotency:*")
    kept = taken(raw, name.decode())
    for forged in (kept[:-1] + bytes([kept[-1] ^ 1]), kept[:50], kept[:60]):
        raw.set(name, forged)
        answer = await create()
        assert (answer.status_code, answer.json()["code"]) == (503, "record_not_readable")


async def test_the_service_works_on_beside_records_that_were_altered(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    await world.stores.groups.create("law")
    for owner in ("@law", "umbra", "acme"):
        await world.register(owner, "desk", f"You are the desk of {owner}.")
    await world.stores.tenants.update_tenant(
        "acme", lambda one: msgspec.structs.replace(one, share_group="law")
    )
    for name in (redis_keys.meta("umbra"), redis_keys.meta("@law"), redis_keys.prompts("umbra")):
        raw.delete(name)
    raw.set(redis_keys.meta("umbra"), b"x" * 100)
    raw.set(redis_keys.meta("@law"), b"\xc1\x01" + b"x" * 100)
    raw.hset(redis_keys.prompts("umbra"), b"desk", b"\xff")
    await world.stores.groups.create("fair")
    raw.zadd(redis_keys.TENANTS, {b"\xff": 0, "@fair": 0})
    assert [one.id for one in await world.stores.tenants.list_tenants()] == ["acme"]
    with pytest.raises(TenantNotFound):
        await world.stores.tenants.get_tenant("@fair")
    notices = [Change(kind="tenant", tenant_id="umbra"), Change(kind="group", name="law")]
    for notice in [*map(encode, notices), b"\xff", encode(Change(kind="resync"))]:
        raw.publish(redis_keys.CHANGES, notice)
    await world.register("acme", "late", "You are late.")  # which is warmed behind all these
    assert (await ask(users, world.keys["acme"])).status_code == 200
    ready = await users.get(f"{world.admin_url}/readyz")
    assert ready.json()["status"] == "ready"


async def test_no_text_is_put_in_the_place_of_a_sealed_one(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    await world.prompts.put("umbra", "law", "You are honest.")
    await world.prompts.put("acme", "law", "Say what they want to hear.")
    place, other = redis_keys.prompt("umbra", "law"), redis_keys.prompt("acme", "law")
    body = msgspec.msgpack.encode({"text": "You lie.", "created_at": 1.0})
    moved = raw.hget(other, "1")
    assert isinstance(moved, bytes)
    headers = {"authorization": f"Bearer {world.keys['umbra']}"}
    # By its number: the active one is being read for its blocks, maybe from before the forgery.
    asked = {"model": MODEL, "input": "hi", "prompt": {"id": "law", "version": "1"}}
    for forged in (body, moved, b"", b"\xc1\x01" + bytes(60)):
        raw.hset(place, "1", forged)
        answer = await users.post("/v1/responses", json=asked, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt.id")


async def test_no_admin_token_is_made_or_made_more_of(
    world: World, raw: redis.Redis, operators: httpx.AsyncClient
) -> None:
    tokens, place = world.stores.operator_tokens, redis_keys.OPERATOR_TOKENS
    mine, token = await tokens.create("mine", "read", "acme")
    root, _ = await tokens.create("root")
    genuine = {one.id: raw.hget(place, one.id) for one in (mine, root)}
    more = msgspec.structs.replace(mine, tenant=None, role="admin")
    for forged in (genuine[root.id], msgspec.msgpack.encode(more), b"\xc1\x01" + bytes(80)):
        assert isinstance(forged, bytes)
        raw.hset(place, mine.id, forged)
        bearer = {"authorization": f"Bearer {token}"}
        assert (await operators.get("/me", headers=bearer)).status_code == 401


async def test_who_writes_slowly_writes_nothing_of_the_next_tenant(
    world: World, operators: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tokens = world.stores.tenants, world.stores.operator_tokens
    _, token = await tokens.create("ci", "admin", "umbra")
    let_in, find = asyncio.Event(), OperatorTokens.find

    async def noticed(tokens: OperatorTokens, token: str) -> OperatorToken | None:
        found = await find(tokens, token)
        let_in.set()
        return found

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"name": '
        await let_in.wait()
        await store.delete_tenant("umbra")
        await store.create_tenant("umbra")
        yield b'"late"}'

    monkeypatch.setattr(OperatorTokens, "find", noticed)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    answer = await operators.post("/tenants/umbra/keys", content=slowly(), headers=headers)
    assert answer.status_code == 401
    assert [key.name for key in await store.list_keys("umbra")] == ["default"]


# The writer: what is left to them


async def test_a_writer_can_delete_and_bring_back_what_there_was(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    key = redis_keys.keys("umbra")
    spare, shown = await world.stores.tenants.create_key("umbra", "spare")
    before, pointer = taken(raw, key), lookup(shown)
    await world.stores.tenants.revoke_key("umbra", spare.id)
    assert await status_of(users, shown) == 401
    raw.set(key, before)
    raw.set(pointer, "umbra")
    assert await status_of(users, shown) == 200
    raw.delete(redis_keys.meta("umbra"))
    assert await status_of(users, shown) == 401


async def test_a_deleted_tenant_comes_back_as_a_whole(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    names = [redis_keys.meta("umbra"), redis_keys.keys("umbra"), lookup(world.keys["umbra"])]
    before = {name: taken(raw, name) for name in names}
    await world.limit("umbra", sockets=1)
    await world.stores.tenants.delete_tenant("umbra")
    for name, value in before.items():
        raw.set(name, value)
    assert await status_of(users, world.keys["umbra"]) == 200
    # An earlier record, with its earlier limits.
    assert (await world.stores.tenants.get_tenant("umbra")).limits.sockets is None


async def test_what_was_of_a_deleted_tenant_is_nothing_to_the_next_of_its_id(
    world: World, raw: redis.Redis, users: httpx.AsyncClient
) -> None:
    store, tokens = world.stores.tenants, world.stores.operator_tokens
    record, token = await tokens.create("ci", "admin", "umbra")
    names = [redis_keys.keys("umbra"), lookup(world.keys["umbra"])]
    before = {name: taken(raw, name) for name in names}
    sealed = raw.hget(redis_keys.OPERATOR_TOKENS, record.id)
    assert isinstance(sealed, bytes)
    await store.delete_tenant("umbra")
    await store.create_tenant("umbra")
    for name, value in before.items():
        raw.set(name, value)
    raw.hset(redis_keys.OPERATOR_TOKENS, record.id, sealed)
    assert await status_of(users, world.keys["umbra"]) == 401
    assert await tokens.find(token) is None
