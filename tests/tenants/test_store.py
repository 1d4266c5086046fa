"""Tenants and their keys, over a real server."""

from __future__ import annotations

import asyncio
import contextlib
import math

import pytest
import redis

from tenants.errors import (
    InvalidField,
    PepperMismatch,
    StoreUnavailable,
    TenantExists,
    TenantNotFound,
)
from tenants.store import TenantStore
from tests.tenants.conftest import OpenRoom, Room, eventually, everything, listening


async def test_a_new_tenant_is_who_its_key_says(store: TenantStore) -> None:
    tenant, key = await store.create_tenant("acme", "Acme & Söhne")
    assert (tenant.id, tenant.name) == ("acme", "Acme & Söhne")
    assert await store.authenticate(key) == tenant
    assert await store.get_tenant("acme") == tenant


async def test_a_key_made_by_one_process_opens_another(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    tenant, key = await room.store.create_tenant("acme")
    assert await (await open_room(redis_url)).store.authenticate(key) == tenant


async def test_no_key_is_ever_in_the_store_in_clear(store: TenantStore, raw: redis.Redis) -> None:
    _, first = await store.create_tenant("acme")
    second = await store.rotate_key("acme", overlap_seconds=60)
    await store.authenticate(first)
    held = b"\0".join(part for pair in everything(raw).items() for part in pair)
    assert b"acme" in held
    for key in (first, second):
        assert key.encode() not in held
        assert key.partition(".")[2].encode() not in held


async def test_namespace_secrets_are_random_and_stay_out_of_logs(store: TenantStore) -> None:
    one, _ = await store.create_tenant("one")
    two, _ = await store.create_tenant("two")
    assert len(one.namespace_secret) == 32
    assert one.namespace_key != two.namespace_key
    assert one.user_key("ann") != two.user_key("ann")
    assert len({one.namespace_key, one.user_key("ann"), one.user_key("bob")}) == 3
    assert repr(one.namespace_secret) not in repr(one)
    assert str(one.namespace_secret) not in f"{one} {[one]}"


async def test_a_right_id_with_a_wrong_secret_opens_nothing(store: TenantStore) -> None:
    _, key = await store.create_tenant("acme")
    _, other = await store.create_tenant("umbra")
    key_id, _, secret = key.partition(".")
    other_id, _, other_secret = other.partition(".")
    assert await store.authenticate(f"{key_id}.{'A' * len(secret)}") is None
    assert await store.authenticate(f"{key_id}.{other_secret}") is None
    assert await store.authenticate(f"{other_id}.{secret}") is None


async def test_another_pepper_is_refused_and_opens_nothing(room: Room, redis_url: str) -> None:
    _, key = await room.store.create_tenant("acme")
    stranger = TenantStore(room.redis, b"x" * 32)
    with pytest.raises(PepperMismatch, match="pepper"):
        await stranger.check_pepper()
    with pytest.raises(PepperMismatch):
        await stranger.create_tenant("umbra")
    with pytest.raises(PepperMismatch):
        await stranger.rotate_key("acme")
    assert await stranger.authenticate(key) is None
    assert [tenant.id for tenant in await room.store.list_tenants()] == ["acme"]
    await room.store.check_pepper()


async def test_a_rotated_key_is_dead_at_once(
    store: TenantStore, redis_url: str, open_room: OpenRoom
) -> None:
    tenant, old = await store.create_tenant("acme")
    elsewhere = (await open_room(redis_url, cache_seconds=0)).store
    assert await store.authenticate(old) == await elsewhere.authenticate(old) == tenant
    new = await store.rotate_key("acme")
    for process in (store, elsewhere):
        assert await process.authenticate(old) is None
        assert await process.authenticate(new) == tenant


async def test_with_an_overlap_both_keys_are_live_and_never_more(store: TenantStore) -> None:
    tenant, first = await store.create_tenant("acme")
    second = await store.rotate_key("acme", overlap_seconds=60)
    assert await store.authenticate(first) == await store.authenticate(second) == tenant
    third = await store.rotate_key("acme", overlap_seconds=60)
    assert await store.authenticate(first) is None
    assert await store.authenticate(second) == await store.authenticate(third) == tenant


async def test_an_outgoing_key_dies_when_its_overlap_is_over_even_where_it_is_remembered(
    store: TenantStore, redis_url: str, open_room: OpenRoom, raw: redis.Redis
) -> None:
    _, old = await store.create_tenant("acme")
    new = await store.rotate_key("acme", overlap_seconds=0.3)
    elsewhere = (await open_room(redis_url, cache_seconds=3600)).store
    await elsewhere.authenticate(old)

    async def dead() -> bool:
        return await store.authenticate(old) is None and await elsewhere.authenticate(old) is None

    await eventually(dead)
    assert await store.authenticate(new) is not None

    async def forgotten() -> bool:
        return len(list(raw.scan_iter("pw:key:*"))) == 1

    await eventually(forgotten)


async def test_a_second_rotation_does_not_prolong_an_outgoing_key(store: TenantStore) -> None:
    _, first = await store.create_tenant("acme")
    await store.rotate_key("acme", overlap_seconds=60)
    last = await store.rotate_key("acme")
    assert await store.authenticate(first) is None
    assert await store.authenticate(last) is not None


async def test_rotations_at_the_same_time_leave_at_most_two_live_keys(
    store: TenantStore, redis_url: str, open_room: OpenRoom, raw: redis.Redis
) -> None:
    _, first = await store.create_tenant("acme")
    others = [(await open_room(redis_url)).store for _ in range(2)]
    new = await asyncio.gather(*(one.rotate_key("acme", 60) for one in (store, *others)))
    fresh = (await open_room(redis_url)).store
    live = [key for key in (first, *new) if await fresh.authenticate(key) is not None]
    assert len(live) == 2
    assert set(live) <= set(new)
    assert len(list(raw.scan_iter("pw:key:*"))) == 2


@pytest.mark.parametrize("overlap", [-1, math.nan, math.inf, 1e300])
async def test_an_impossible_overlap_is_refused_by_name_and_changes_nothing(
    store: TenantStore, overlap: float
) -> None:
    _, key = await store.create_tenant("acme")
    with pytest.raises(InvalidField, match="overlap_seconds") as caught:
        await store.rotate_key("acme", overlap)
    assert caught.value.field == "overlap_seconds"
    assert await store.authenticate(key) is not None


async def test_a_taken_id_is_refused_and_its_owner_untouched(store: TenantStore) -> None:
    tenant, key = await store.create_tenant("acme", "first")
    with pytest.raises(TenantExists, match="acme"):
        await store.create_tenant("acme", "second")
    assert await store.get_tenant("acme") == tenant
    assert await store.authenticate(key) == tenant


async def test_of_several_who_claim_an_id_at_once_one_gets_it(
    store: TenantStore, redis_url: str, open_room: OpenRoom
) -> None:
    others = [(await open_room(redis_url)).store for _ in range(3)]
    claims = [one.create_tenant("acme", f"{n}") for n, one in enumerate((store, *others))]
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, TenantExists)]
    assert (len(won), len(lost)) == (1, 3)
    tenant, key = won[0]
    assert await store.authenticate(key) == await store.get_tenant("acme") == tenant


@pytest.mark.parametrize(
    "tenant_id", ["", "Acme", "a" * 64, "a_b", "a b", "a\n", "{a}", "*", "ä", "a:b", "\ud800"]
)
async def test_an_id_that_is_no_slug_is_refused_by_name(
    store: TenantStore, raw: redis.Redis, tenant_id: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.create_tenant(tenant_id)
    assert caught.value.field == "id"
    assert not everything(raw)


@pytest.mark.parametrize("name", ["", "a" * 201, "two\nlines", "\x1b[2J", "\ud800"])
async def test_a_name_that_cannot_be_shown_is_refused(store: TenantStore, name: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.create_tenant("acme", name)
    assert caught.value.field == "name"


async def test_tenants_are_listed_by_id(store: TenantStore) -> None:
    assert await store.list_tenants() == []
    made = [(await store.create_tenant(name))[0] for name in ("b", "c", "a")]
    assert await store.list_tenants() == [made[2], made[0], made[1]]


@pytest.mark.parametrize("call", ["get_tenant", "delete_tenant", "rotate_key"])
async def test_what_is_done_to_a_tenant_that_is_not_there_says_so(
    store: TenantStore, raw: redis.Redis, call: str
) -> None:
    with pytest.raises(TenantNotFound, match="acme"):
        await getattr(store, call)("acme")
    assert not [key for key in everything(raw) if b"acme" in key]


async def fill(room: Room, tenant_id: str) -> str:
    """A tenant with something of everything; returns its key."""
    _, _ = await room.store.create_tenant(tenant_id)
    key = await room.store.rotate_key(tenant_id, 60)
    await room.prompts.put(tenant_id, "law", "one")
    await room.prompts.put(tenant_id, "law", "two")
    await room.prompts.put(tenant_id, "gone", "three")
    await room.prompts.delete(tenant_id, "gone")
    await room.conversations.save(tenant_id, "resp_1", b"blob", 60)
    return key


async def test_deletion_leaves_nothing_of_a_tenant_and_all_of_the_others(
    room: Room, raw: redis.Redis
) -> None:
    key = await fill(room, "acme")
    other_key = await fill(room, "acme-2")
    before = {name: value for name, value in everything(raw).items() if b"{acme-2}" in name}
    await room.store.delete_tenant("acme")
    left = everything(raw)
    assert not [name for name, value in left.items() if b"{acme}" in name or value == b"acme"]
    assert len([name for name in left if name.startswith(b"pw:key:")]) == 2
    assert left[b"pw:tenants"] == b"acme-2"
    assert {name: left[name] for name in before} == before
    assert await room.store.authenticate(key) is None
    assert await room.store.authenticate(other_key) is not None
    assert await room.prompts.get("acme", "law") is None
    assert await room.prompts.find_by_text("acme", "two") is None
    assert await room.conversations.load("acme", "resp_1") is None


async def test_an_id_that_is_used_again_starts_from_nothing(room: Room) -> None:
    old_key = await fill(room, "acme")
    old = await room.store.get_tenant("acme")
    await room.store.delete_tenant("acme")
    new, _ = await room.store.create_tenant("acme")
    assert new.namespace_secret != old.namespace_secret
    assert await room.store.authenticate(old_key) is None
    assert await room.prompts.list("acme") == []
    assert await room.prompts.get("acme", "law") is None
    assert await room.conversations.load("acme", "resp_1") is None


def cut_off(room: Room, monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Let `after` more round trips of the room happen, and no others; counts what is left."""
    left = [after]
    for name in ("execute", "pipeline", "transaction"):
        real = getattr(room.redis, name)

        async def limited(*args: object, real: object = real) -> object:
            if left[0] == 0:
                raise StoreUnavailable("cut off")
            left[0] -= 1
            assert callable(real)
            return await real(*args)

        monkeypatch.setattr(room.redis, name, limited)
    return left


async def test_a_deletion_cut_off_anywhere_is_finished_by_another(
    raw: redis.Redis, redis_url: str, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = await open_room(redis_url, cache_seconds=0)
    await fill(healthy, "umbra")
    for after in range(50):
        key = await fill(healthy, "acme")
        dying = await open_room(redis_url)
        cut_off(dying, monkeypatch, after)
        try:
            await dying.store.delete_tenant("acme")
            finished = True
        except StoreUnavailable:
            finished = False
            if await healthy.store.authenticate(key) is None:
                # Half gone: nobody may take the id over what is left.
                with pytest.raises(TenantExists):
                    await healthy.store.create_tenant("acme")
            await healthy.store.delete_tenant("acme")
        left = everything(raw)
        assert not [name for name, value in left.items() if b"{acme}" in name or value == b"acme"]
        assert left[b"pw:tenants"] == b"umbra"
        if finished:
            break
    assert finished
    assert after > 2


async def test_a_creation_cut_off_anywhere_can_be_mended(
    raw: redis.Redis, redis_url: str, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = (await open_room(redis_url)).store
    for after in range(50):
        dying = await open_room(redis_url)
        left = cut_off(dying, monkeypatch, after)
        with contextlib.suppress(StoreUnavailable):
            await dying.store.create_tenant("acme")
        finished = left[0] > 0
        listed = [tenant.id for tenant in await healthy.list_tenants()]
        if not listed:
            tenant, key = await healthy.create_tenant("acme")
        else:
            assert listed == ["acme"]
            tenant, key = await healthy.get_tenant("acme"), await healthy.rotate_key("acme")
        assert await healthy.authenticate(key) == tenant
        await healthy.delete_tenant("acme")
        assert everything(raw).keys() <= {b"pw:pepper"}
        if finished:
            break
    assert finished
    assert after > 2


async def test_a_rotation_cut_off_anywhere_can_be_done_again(
    raw: redis.Redis, redis_url: str, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = (await open_room(redis_url)).store
    tenant, key = await healthy.create_tenant("acme")
    for after in range(50):
        dying = await open_room(redis_url)
        left = cut_off(dying, monkeypatch, after)
        with contextlib.suppress(StoreUnavailable):
            await dying.store.rotate_key("acme", 60)
        new = await healthy.rotate_key("acme", 60)
        assert await healthy.authenticate(new) == tenant
        assert len(list(raw.scan_iter("pw:key:*"))) <= 2
        if left[0] > 0:
            break
    assert left[0] > 0
    assert await healthy.authenticate(key) is None


async def test_what_one_process_revokes_another_forgets_on_notice(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    remembering = await open_room(redis_url, cache_seconds=3600)
    _, key = await room.store.create_tenant("acme")
    _, other_key = await room.store.create_tenant("umbra")
    async with listening(remembering) as heard:
        assert await remembering.store.authenticate(key) is not None
        assert await remembering.store.authenticate(other_key) is not None
        await room.store.rotate_key("acme")
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.tenant_id) == ("keys", "acme")
        assert await remembering.store.authenticate(key) is None
        await room.store.delete_tenant("umbra")
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.tenant_id) == ("tenant", "umbra")
        assert await remembering.store.authenticate(other_key) is None


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
    assert await room.store.authenticate(key) == tenant
    assert await room.store.authenticate("sk-1234") is None


async def test_who_writes_can_tell_whether_a_service_hears_of_it(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    assert await room.store.count_listeners() == 0
    service = await open_room(redis_url)
    async with listening(service):
        assert await room.store.count_listeners() == 1

    async def nobody() -> bool:
        return await room.store.count_listeners() == 0

    await eventually(nobody)
