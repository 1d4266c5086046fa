"""Adapters that tenants and share groups own, over a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import redis
from msgspec.structs import replace

from tenants import redis_keys
from tenants.adapters.adapters import Adapters
from tenants.adapters.room import MostAdapters
from tenants.at_rest.sealer import PIECE_BYTES
from tenants.errors import (
    AdapterNotFound,
    AdaptersExceeded,
    GroupNotFound,
    InvalidField,
    StoreConflict,
    TenantNotFound,
)
from tenants.records import Tenant
from tests.tenants.adapters.putting import CONFIG, Check, Refused, chunks, put, read
from tests.tenants.conftest import OpenRoom, Room, everything, listening

LARGE = os.urandom(2 * PIECE_BYTES + 12345)


@pytest.fixture
async def acme(room: Room) -> Tenant:
    await room.store.create_tenant("umbra")
    return (await room.store.create_tenant("acme"))[0]


@pytest.fixture
def adapters(room: Room, acme: Tenant) -> Adapters:
    return room.adapters


def pieces(raw: redis.Redis) -> list[bytes]:
    return list(raw.scan_iter("pw:*:adapter-piece:*"))


async def test_files_come_back_as_they_came_in_pieces_that_are_not_in_clear(
    adapters: Adapters, raw: redis.Redis
) -> None:
    kept = await put(adapters, weights=LARGE)
    assert (kept.version, kept.num_bytes, kept.rank) == (1, len(LARGE), 8)
    assert kept.targets == ("q_proj", "v_proj")
    assert kept.active
    assert await adapters.get("acme", "rhyme") == kept
    assert await adapters.read_config(kept) == CONFIG
    assert await read(adapters, kept) == LARGE
    stored = everything(raw)
    assert len(pieces(raw)) == kept.pieces == 4
    assert max(map(len, stored.values())) == 1 << 20
    assert not any(CONFIG in value or LARGE[:32] in value for value in stored.values())
    assert not any(kept.digest in value for value in stored.values())


async def test_nothing_that_is_kept_expires(adapters: Adapters, raw: redis.Redis) -> None:
    await put(adapters, weights=LARGE)
    assert {raw.ttl(key) for key in raw.scan_iter("pw:{acme}:*")} == {-1}


async def test_every_adapter_that_acts_otherwise_is_a_new_version(adapters: Adapters) -> None:
    first = await put(adapters, weights=b"one")
    second = await put(adapters, weights=b"two")
    assert (second.version, second.active) == (2, True)
    assert await put(adapters, weights=b"two") == second
    first = replace(first, active=False)
    assert await adapters.versions("acme", "rhyme") == [second, first]
    assert await adapters.versions("acme", "rhyme", 2) == [first]
    assert await adapters.get("acme", "rhyme", 1) == first
    assert await adapters.get("acme", "rhyme", "2") == second
    assert await adapters.get("acme", "rhyme", 3) is None
    assert await adapters.get("acme", "rhyme", "x") is None


async def test_what_makes_no_new_version_leaves_no_pieces(
    adapters: Adapters, raw: redis.Redis
) -> None:
    await put(adapters)
    before = sorted(pieces(raw))
    await put(adapters)
    assert sorted(pieces(raw)) == before


async def test_a_version_may_be_put_aside_and_activated_later(adapters: Adapters) -> None:
    first = await put(adapters, weights=b"one", activate=False)
    assert first.active  # something must be
    second = await put(adapters, weights=b"two", activate=False)
    assert not second.active
    assert await adapters.list("acme") == [first]
    active = await adapters.activate("acme", "rhyme", 2)
    assert active == replace(second, active=True)
    assert await adapters.get("acme", "rhyme") == active
    for version in (0, 3):
        with pytest.raises(AdapterNotFound, match="rhyme"):
            await adapters.activate("acme", "rhyme", version)


async def test_a_pin_stays_with_the_adapter_until_it_is_deleted(adapters: Adapters) -> None:
    first = await put(adapters, weights=b"one")
    assert await adapters.set_pinned("acme", "rhyme", True) == replace(first, pinned=True)
    assert (await put(adapters, weights=b"two")).pinned
    await adapters.delete("acme", "rhyme")
    assert not (await put(adapters, weights=b"two")).pinned


async def test_adapters_are_listed_by_name_page_by_page(adapters: Adapters) -> None:
    for name in ("tax", "law", "art"):
        await put(adapters, name=name)
    assert [one.name for one in await adapters.list("acme", limit=2)] == ["art", "law"]
    assert [one.name for one in await adapters.list("acme", after="law")] == ["tax"]
    assert await adapters.list("umbra") == []


async def test_a_deleted_adapter_leaves_nothing_but_the_number_of_its_last_version(
    adapters: Adapters, raw: redis.Redis
) -> None:
    for weights in (b"one", LARGE):
        kept = await put(adapters, weights=weights)
    reading = adapters.read_weights(kept)
    await anext(reading)
    await adapters.delete("acme", "rhyme")
    assert await adapters.get("acme", "rhyme") is None
    assert not [*pieces(raw), *raw.scan_iter("pw:*:adapter:*")]
    with pytest.raises(AdapterNotFound):
        await anext(reading)
    with pytest.raises(AdapterNotFound):
        await adapters.delete("acme", "rhyme")
    with pytest.raises(AdapterNotFound):
        await adapters.versions("acme", "rhyme")
    assert (await put(adapters, weights=b"one")).version == 3


async def test_a_deleted_tenants_adapters_are_gone_with_it(
    room: Room, adapters: Adapters, raw: redis.Redis
) -> None:
    await put(adapters)
    await room.store.delete_tenant("acme")
    assert list(raw.scan_iter("pw:{acme}:*")) == []
    assert await adapters.get("acme", "rhyme") is None


async def test_what_is_refused_on_its_way_leaves_nothing(
    adapters: Adapters, raw: redis.Redis
) -> None:
    before = everything(raw)
    with pytest.raises(Refused):
        await put(adapters, weights=LARGE + b"not finite")
    assert everything(raw) == before
    await put(adapters)


async def test_who_goes_away_on_the_way_leaves_nothing(
    adapters: Adapters, raw: redis.Redis
) -> None:
    before, half_way = everything(raw), asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield LARGE
        half_way.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(adapters.put("acme", "rhyme", CONFIG, stuck(), Check()))
    await half_way.wait()
    assert all(raw.ttl(key) > 0 for key in pieces(raw))
    assert len(pieces(raw)) == 3
    with pytest.raises(StoreConflict, match="another adapter"):
        await put(adapters, name="other")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert everything(raw) == before


async def test_files_of_a_tenant_that_is_deleted_meanwhile_are_not_the_next_ones(
    room: Room, adapters: Adapters, raw: redis.Redis
) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield LARGE
        await room.store.delete_tenant("acme")
        await room.store.create_tenant("acme")
        yield LARGE

    with pytest.raises(StoreConflict, match="gone"):
        await adapters.put("acme", "rhyme", CONFIG, slow(), Check())
    assert await adapters.list("acme") == []
    assert pieces(raw) == []


async def test_pieces_that_expired_on_the_way_make_no_adapter(
    adapters: Adapters, raw: redis.Redis
) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield LARGE
        raw.delete(pieces(raw)[0])

    with pytest.raises(StoreConflict, match="too long"):
        await adapters.put("acme", "rhyme", CONFIG, slow(), Check())
    assert pieces(raw) == []


async def test_a_piece_that_was_altered_or_moved_is_as_good_as_gone(
    adapters: Adapters, raw: redis.Redis
) -> None:
    kept = await put(adapters, weights=LARGE)
    one, other = (redis_keys.adapter_piece("acme", kept.files, number) for number in (1, 2))
    raw.copy(one, other, replace=True)
    with pytest.raises(AdapterNotFound):
        await read(adapters, kept)


async def test_an_owner_has_so_many_adapters_and_bytes_of_them_and_no_more(
    room: Room, acme: Tenant, raw: redis.Redis
) -> None:
    async def most(owner: str) -> MostAdapters:
        return MostAdapters(2, 5000) if owner == "acme" else MostAdapters()

    adapters = Adapters(room.redis, room.keyring, most=most)
    await put(adapters, name="one", weights=b"1" * 2000)
    await put(adapters, name="two", weights=b"2" * 2000)
    before = everything(raw)
    with pytest.raises(AdaptersExceeded, match="2 adapters"):
        await put(adapters, name="three", weights=b"3")
    with pytest.raises(AdaptersExceeded, match="adapter_bytes"):
        await put(adapters, name="two", weights=b"3" * 1000)
    assert everything(raw) == before
    await put(adapters, name="two", weights=b"3" * 900)
    await adapters.delete("acme", "two")
    await put(adapters, name="three", weights=b"3" * 2900)
    for number in range(3):
        await put(adapters, "umbra", f"n{number}", b"5" * 5000)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "a" * 65])
async def test_a_name_that_cannot_be_is_refused(adapters: Adapters, name: str) -> None:
    with pytest.raises(InvalidField, match="name"):
        await put(adapters, name=name)
    assert await adapters.get("acme", name) is None


async def test_nobody_who_is_not_there_has_adapters(adapters: Adapters) -> None:
    with pytest.raises(TenantNotFound):
        await put(adapters, "nobody")
    with pytest.raises(GroupNotFound):
        await put(adapters, "@nobody")
    with pytest.raises(TenantNotFound):
        await put(adapters, "no such id")
    assert await adapters.get("no such id", "rhyme") is None


async def test_a_tenant_means_its_own_adapter_or_else_its_groups(
    room: Room, adapters: Adapters, acme: Tenant
) -> None:
    await room.groups.create("law")
    shared = await put(adapters, "@law", "shared")
    await put(adapters, "umbra", "secret")
    assert await adapters.resolve(acme, "shared") is None
    member = replace(acme, share_group="law")
    assert await adapters.resolve(member, "shared") == shared
    own = await put(adapters, "acme", "shared", b"own")
    assert await adapters.resolve(member, "shared") == own
    assert await adapters.resolve(member, "secret") is None


async def test_to_resolve_a_name_asks_for_nothing_of_any_other_owner(
    room: Room, adapters: Adapters, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(adapters, "umbra", "secret")
    asked: list[tuple[object, ...]] = []
    real = room.redis.execute

    async def noted(*command: str) -> object:
        asked.append(command)
        return await real(*command)

    monkeypatch.setattr(room.redis, "execute", noted)
    for name in ("secret", "nothing"):
        assert await adapters.resolve(acme, name) is None
    theirs, nobodys = asked
    assert theirs[:2] == nobodys[:2] == ("HGET", redis_keys.adapters("acme"))


async def test_other_processes_hear_of_a_change_at_once(
    open_room: OpenRoom, redis_url: str, adapters: Adapters
) -> None:
    other = await open_room(redis_url)
    async with listening(other) as heard:
        assert await other.adapters.get("acme", "rhyme") is None
        kept = await put(adapters)
        assert (await heard.get()).kind == "adapters"
        assert await other.adapters.get("acme", "rhyme") == kept


async def test_who_changed_what_is_in_the_audit(room: Room, adapters: Adapters) -> None:
    await adapters.put("acme", "rhyme", CONFIG, chunks(b"one"), Check(), actor="ann")
    await adapters.set_pinned("acme", "rhyme", True, actor="bob")
    await adapters.delete("acme", "rhyme", actor="cid")
    entries = (await room.audit.read(owner="acme"))[:3]
    assert [(one.actor, one.action, one.target) for one in reversed(entries)] == [
        ("ann", "adapter.put", "rhyme"),
        ("bob", "adapter.pin", "rhyme"),
        ("cid", "adapter.delete", "rhyme"),
    ]
    assert entries[2].after == {"active_version": 1, "last_version": 1, "pinned": False}
