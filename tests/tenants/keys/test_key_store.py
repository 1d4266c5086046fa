"""API keys: several for each tenant, and each ends when it should, over a real server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time

import pytest
import redis
from msgspec.structs import replace

from tenants.at_rest.pepper import Peppers
from tenants.errors import (
    InvalidField,
    KeyNotFound,
    PepperMismatch,
    StoreConflict,
    StoreUnavailable,
    TenantNotFound,
)
from tenants.keys.key_store import MAX_LIVE_KEYS
from tenants.store import TenantStore
from tests.tenants.conftest import (
    OpenRoom,
    Room,
    cut_off,
    eventually,
    everything,
    listening,
    named,
    who,
)


async def test_a_key_made_by_one_process_opens_another(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    tenant, key = await room.store.create_tenant("acme")
    assert await who((await open_room(redis_url)).store, key) == tenant


async def test_no_key_is_ever_in_the_store_in_clear(store: TenantStore, raw: redis.Redis) -> None:
    _, first = await store.create_tenant("acme")
    _, second = await store.rotate_key("acme", overlap_seconds=60)
    _, third = await store.create_key("acme", "laptop")
    await store.authenticate(first)
    held = b"\0".join(part for pair in everything(raw).items() for part in pair)
    assert b"acme" in held
    for key in (first, second, third):
        assert key.encode() not in held
        assert key.partition(".")[2].encode() not in held


async def test_a_right_id_with_a_wrong_secret_opens_nothing(store: TenantStore) -> None:
    _, key = await store.create_tenant("acme")
    _, other = await store.create_tenant("umbra")
    key_id, _, secret = key.partition(".")
    other_id, _, other_secret = other.partition(".")
    assert await store.authenticate(f"{key_id}.{'A' * len(secret)}") is None
    assert await store.authenticate(f"{key_id}.{other_secret}") is None
    assert await store.authenticate(f"{other_id}.{secret}") is None
    assert await store.authenticate(key) is not None


async def test_another_pepper_is_refused_and_opens_nothing(room: Room) -> None:
    _, key = await room.store.create_tenant("acme")
    stranger = TenantStore(room.redis, Peppers(b"x" * 32))
    with pytest.raises(PepperMismatch, match="pepper"):
        await stranger.check_pepper()
    for call in (
        stranger.create_tenant("umbra"),
        stranger.create_key("acme", "laptop"),
        stranger.rotate_key("acme"),
    ):
        with pytest.raises(PepperMismatch):
            await call
    assert await stranger.authenticate(key) is None
    assert [tenant.id for tenant in await room.store.list_tenants()] == ["acme"]
    await room.store.check_pepper()


async def test_a_tenant_has_several_keys_by_name_the_newest_first(store: TenantStore) -> None:
    tenant, first = await store.create_tenant("acme")
    laptop, second = await store.create_key("acme", "Ann's laptop")
    end = time.time() + 60
    build, third = await store.create_key("acme", "build server", expires_at=end)
    for key in (first, second, third):
        assert await who(store, key) == tenant
    keys = await store.list_keys("acme")
    assert [key.name for key in keys] == ["build server", "Ann's laptop", "default"]
    assert keys[:2] == [build, laptop]
    assert await store.get_key("acme", build.id) == build
    assert (build.expires_at, laptop.expires_at) == (end, None)
    principal = await store.authenticate(second)
    assert principal is not None
    assert principal.key == laptop


async def test_a_key_is_found_with_its_own_tenant_only(store: TenantStore) -> None:
    await store.create_tenant("acme")
    await store.create_tenant("umbra")
    key, _ = await store.create_key("acme", "laptop")
    for call in (
        store.get_key("umbra", key.id),
        store.revoke_key("umbra", key.id),
        store.rotate_key("umbra", key.id),
        store.update_key("umbra", key.id, named("mine")),
        store.get_key("acme", "0" * 16),
    ):
        with pytest.raises(KeyNotFound):
            await call
    assert await store.get_key("acme", key.id) == key


async def test_what_is_done_to_keys_of_a_tenant_that_is_not_there_says_so(
    store: TenantStore, raw: redis.Redis
) -> None:
    for call in (
        store.create_key("acme", "laptop"),
        store.list_keys("acme"),
        store.get_key("acme", "0" * 16),
        store.update_key("acme", "0" * 16, named("x")),
        store.revoke_key("acme", "0" * 16),
        store.rotate_key("acme", "0" * 16),
        store.list_keys("no slug"),
    ):
        with pytest.raises(TenantNotFound):
            await call
    assert not [key for key in everything(raw) if b"acme" in key]


async def test_a_revoked_key_is_dead_at_once_and_the_others_live_on(
    store: TenantStore, redis_url: str, open_room: OpenRoom, raw: redis.Redis
) -> None:
    tenant, first = await store.create_tenant("acme")
    laptop, second = await store.create_key("acme", "laptop")
    elsewhere = (await open_room(redis_url, cache_seconds=0)).store
    assert await who(elsewhere, second) == tenant
    await store.revoke_key("acme", laptop.id)
    for process in (store, elsewhere):
        assert await who(process, second) is None
        assert await who(process, first) == tenant
    assert len(list(raw.scan_iter("pw:key:*"))) == 1
    with pytest.raises(KeyNotFound, match=laptop.id):
        await store.revoke_key("acme", laptop.id)


async def test_a_key_is_renamed_and_its_end_moved(store: TenantStore, raw: redis.Redis) -> None:
    tenant, _ = await store.create_tenant("acme")
    key, secret = await store.create_key("acme", "laptop")
    end = time.time() + 60
    renamed = await store.update_key(
        "acme", key.id, lambda old: replace(old, name="tablet", expires_at=end)
    )
    assert renamed == replace(key, name="tablet", expires_at=end)
    assert await store.get_key("acme", key.id) == renamed
    assert raw.pttl(f"pw:key:{key.digest.hex()}") > 0
    assert await store.update_key("acme", key.id, lambda old: old) == renamed
    endless = await store.update_key("acme", key.id, lambda old: replace(old, expires_at=None))
    assert endless == replace(renamed, expires_at=None)
    assert raw.pttl(f"pw:key:{key.digest.hex()}") == -1
    assert await who(store, secret) == tenant


async def test_a_key_expires_even_where_it_is_remembered(
    store: TenantStore, redis_url: str, open_room: OpenRoom, raw: redis.Redis
) -> None:
    await store.create_tenant("acme")
    _, secret = await store.create_key("acme", "laptop", expires_at=time.time() + 0.3)
    elsewhere = (await open_room(redis_url, cache_seconds=3600)).store
    await elsewhere.authenticate(secret)

    async def dead() -> bool:
        return await who(store, secret) is None and await who(elsewhere, secret) is None

    await eventually(dead)

    async def forgotten() -> bool:
        return len(list(raw.scan_iter("pw:key:*"))) == 1

    await eventually(forgotten)
    await store.create_key("acme", "tablet")
    assert [key.name for key in await store.list_keys("acme")] == ["tablet", "default"]


@pytest.mark.parametrize("end", [0.0, -1.0, math.nan, math.inf, 1e300])
async def test_an_impossible_end_is_refused_by_name_and_changes_nothing(
    store: TenantStore, end: float
) -> None:
    await store.create_tenant("acme")
    (key,) = await store.list_keys("acme")
    for call in (
        store.create_key("acme", "laptop", expires_at=end),
        store.update_key("acme", key.id, lambda old: replace(old, expires_at=end)),
    ):
        with pytest.raises(InvalidField) as caught:
            await call
        assert caught.value.field == "expires_at"
    assert await store.list_keys("acme") == [key]


@pytest.mark.parametrize("name", ["", "a" * 201, "two\nlines", "\ud800"])
async def test_a_name_that_cannot_be_shown_is_refused(store: TenantStore, name: str) -> None:
    await store.create_tenant("acme")
    (key,) = await store.list_keys("acme")
    for call in (store.create_key("acme", name), store.update_key("acme", key.id, named(name))):
        with pytest.raises(InvalidField) as caught:
            await call
        assert caught.value.field == "name"


async def test_a_tenant_has_no_more_live_keys_than_it_may(store: TenantStore) -> None:
    await store.create_tenant("acme")
    for number in range(MAX_LIVE_KEYS - 1):
        await store.create_key("acme", f"key {number}")
    with pytest.raises(StoreConflict, match="32"):
        await store.create_key("acme", "one too many")
    with pytest.raises(StoreConflict, match="32"):
        await store.rotate_key("acme", overlap_seconds=60)
    await store.rotate_key("acme")
    (last, *_) = await store.list_keys("acme")
    await store.revoke_key("acme", last.id)
    await store.create_key("acme", "in its place")
    assert len(await store.list_keys("acme")) == MAX_LIVE_KEYS


async def test_a_rotated_key_is_dead_at_once(
    store: TenantStore, redis_url: str, open_room: OpenRoom
) -> None:
    tenant, old = await store.create_tenant("acme")
    elsewhere = (await open_room(redis_url, cache_seconds=0)).store
    assert await who(store, old) == await who(elsewhere, old) == tenant
    _, new = await store.rotate_key("acme")
    for process in (store, elsewhere):
        assert await who(process, old) is None
        assert await who(process, new) == tenant


async def test_a_rotation_with_an_overlap_leaves_both_keys_and_all_others_live(
    store: TenantStore,
) -> None:
    tenant, first = await store.create_tenant("acme")
    end = time.time() + 3600
    laptop, second = await store.create_key("acme", "laptop", expires_at=end)
    new, third = await store.rotate_key("acme", laptop.id, 60)
    assert (new.name, new.expires_at, new.replaced_by) == ("laptop", end, None)
    for key in (first, second, third):
        assert await who(store, key) == tenant
    old = await store.get_key("acme", laptop.id)
    assert old.replaced_by == new.id
    assert old.expires_at is not None
    assert old.expires_at < end


async def test_an_outgoing_key_dies_when_its_overlap_is_over_even_where_it_is_remembered(
    store: TenantStore, redis_url: str, open_room: OpenRoom, raw: redis.Redis
) -> None:
    _, old = await store.create_tenant("acme")
    _, new = await store.rotate_key("acme", overlap_seconds=0.3)
    elsewhere = (await open_room(redis_url, cache_seconds=3600)).store
    await elsewhere.authenticate(old)

    async def dead() -> bool:
        return await who(store, old) is None and await who(elsewhere, old) is None

    await eventually(dead)
    assert await store.authenticate(new) is not None

    async def forgotten() -> bool:
        return len(list(raw.scan_iter("pw:key:*"))) == 1

    await eventually(forgotten)


async def test_an_outgoing_key_is_neither_rotated_again_nor_prolonged(store: TenantStore) -> None:
    await store.create_tenant("acme")
    (first,) = await store.list_keys("acme")
    second, _ = await store.rotate_key("acme", overlap_seconds=60)
    with pytest.raises(StoreConflict, match=second.id):
        await store.rotate_key("acme", first.id, 3600)
    outgoing = await store.get_key("acme", first.id)
    third, _ = await store.rotate_key("acme", overlap_seconds=3600)
    assert await store.get_key("acme", first.id) == outgoing
    assert (await store.get_key("acme", second.id)).replaced_by == third.id


async def test_a_tenant_whose_keys_are_all_revoked_has_none_to_rotate(store: TenantStore) -> None:
    tenant, _ = await store.create_tenant("acme")
    (key,) = await store.list_keys("acme")
    await store.revoke_key("acme", key.id)
    with pytest.raises(KeyNotFound):
        await store.rotate_key("acme")
    _, new = await store.create_key("acme", "laptop")
    assert await who(store, new) == tenant


async def test_rotations_at_the_same_time_follow_each_other(
    store: TenantStore, redis_url: str, open_room: OpenRoom, raw: redis.Redis
) -> None:
    _, first = await store.create_tenant("acme")
    others = [(await open_room(redis_url)).store for _ in range(2)]
    rotations = (one.rotate_key("acme", overlap_seconds=60) for one in (store, *others))
    new = await asyncio.gather(*rotations)
    fresh = (await open_room(redis_url)).store
    for key in (first, *(key for _, key in new)):
        assert await fresh.authenticate(key) is not None
    keys = await fresh.list_keys("acme")
    assert [key.replaced_by for key in keys] == [None, *(key.id for key in keys[:-1])]
    assert len(list(raw.scan_iter("pw:key:*"))) == 4


@pytest.mark.parametrize("overlap", [-1, math.nan, math.inf, 1e300])
async def test_an_impossible_overlap_is_refused_by_name_and_changes_nothing(
    store: TenantStore, overlap: float
) -> None:
    _, key = await store.create_tenant("acme")
    with pytest.raises(InvalidField, match="overlap_seconds") as caught:
        await store.rotate_key("acme", overlap_seconds=overlap)
    assert caught.value.field == "overlap_seconds"
    assert await store.authenticate(key) is not None


async def test_a_rotation_cut_off_anywhere_can_be_done_again(
    raw: redis.Redis, redis_url: str, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = (await open_room(redis_url)).store
    tenant, key = await healthy.create_tenant("acme")
    for after in range(50):
        dying = await open_room(redis_url)
        left = cut_off(dying, monkeypatch, after)
        with contextlib.suppress(StoreUnavailable):
            await dying.store.rotate_key("acme")
        _, new = await healthy.rotate_key("acme")
        assert await who(healthy, new) == tenant
        assert len(list(raw.scan_iter("pw:key:*"))) == 1
        if left[0] > 0:
            break
    assert left[0] > 0
    assert await healthy.authenticate(key) is None


async def test_without_notices_a_revoked_key_lives_no_longer_than_the_copy_is_fresh(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    deaf = await open_room(redis_url, cache_seconds=0.3)
    _, key = await room.store.create_tenant("acme")
    assert await deaf.store.authenticate(key) is not None
    await room.store.rotate_key("acme")

    async def dead() -> bool:
        return await deaf.store.authenticate(key) is None

    await eventually(dead)


async def test_a_known_key_costs_no_round_trip(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant, key = await room.store.create_tenant("acme")
    await room.store.authenticate(key)
    cut_off(room, monkeypatch, 0)
    assert await who(room.store, key) == tenant
    assert await room.store.authenticate("sk-1234") is None


async def test_a_disabled_tenants_key_still_says_whose_it_is(store: TenantStore) -> None:
    _, key = await store.create_tenant("acme")
    disabled = await store.update_tenant("acme", lambda tenant: replace(tenant, status="disabled"))
    assert disabled.status == "disabled"
    assert await who(store, key) == disabled


async def test_what_one_process_revokes_another_forgets_on_notice(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    remembering = await open_room(redis_url, cache_seconds=3600)
    _, key = await room.store.create_tenant("acme")
    _, other_key = await room.store.create_tenant("umbra")
    async with listening(remembering) as heard:
        assert await who(remembering.store, key) is not None
        assert await who(remembering.store, other_key) is not None
        await room.store.rotate_key("acme")
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.tenant_id) == ("keys", "acme")
        assert await who(remembering.store, key) is None
        await room.store.delete_tenant("umbra")
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.tenant_id) == ("deleted", "umbra")
        assert await who(remembering.store, other_key) is None
