"""Tenants and their keys, over a real server."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from tenants.errors import (
    InvalidField,
    StoreUnavailable,
    TenantExists,
    TenantNotFound,
)
from tenants.records import Tenant, TenantLimits
from tenants.store import TenantStore
from tests.tenants.conftest import (
    OpenRoom,
    Room,
    cut_off,
    eventually,
    everything,
    listening,
    who,
)


async def test_a_new_tenant_is_who_its_key_says(store: TenantStore) -> None:
    tenant, key = await store.create_tenant("acme", "Acme & Söhne")
    assert (tenant.id, tenant.name) == ("acme", "Acme & Söhne")
    assert await who(store, key) == tenant
    assert await store.get_tenant("acme") == tenant


async def test_namespace_secrets_are_random_and_stay_out_of_logs(store: TenantStore) -> None:
    one, _ = await store.create_tenant("one")
    two, _ = await store.create_tenant("two")
    assert len(one.namespace_secret) == 32
    assert one.namespace_key != two.namespace_key
    assert one.user_key("ann") != two.user_key("ann")
    assert len({one.namespace_key, one.user_key("ann"), one.user_key("bob")}) == 3
    assert repr(one.namespace_secret) not in repr(one)
    assert str(one.namespace_secret) not in f"{one} {[one]}"


async def test_a_taken_id_is_refused_and_its_owner_untouched(store: TenantStore) -> None:
    tenant, key = await store.create_tenant("acme", "first")
    with pytest.raises(TenantExists, match="acme"):
        await store.create_tenant("acme", "second")
    assert await store.get_tenant("acme") == tenant
    assert await who(store, key) == tenant


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
    assert await who(store, key) == await store.get_tenant("acme") == tenant


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


async def test_the_adapter_that_a_tenant_means_has_the_name_of_one(store: TenantStore) -> None:
    tenant, _ = await store.create_tenant("acme")
    assert tenant.adapter is None
    changed = await store.update_tenant("acme", lambda old: replace(old, adapter="rhyme"))
    assert (await store.get_tenant("acme")).adapter == changed.adapter == "rhyme"
    with pytest.raises(InvalidField) as caught:
        await store.update_tenant("acme", lambda old: replace(old, adapter="no name"))
    assert caught.value.field == "adapter"


async def test_tenants_are_listed_by_id_page_by_page(store: TenantStore) -> None:
    assert await store.list_tenants() == []
    b, c, a = [(await store.create_tenant(name))[0] for name in ("b", "c", "a")]
    assert await store.list_tenants() == [a, b, c]
    assert await store.list_tenants(limit=2) == [a, b]
    assert await store.list_tenants(after="b", limit=2) == [c]
    assert await store.list_tenants(after="bb") == [c]
    assert await store.list_tenants(after="c", limit=2) == []
    await store.delete_tenant("b")
    assert await store.list_tenants(limit=2) == [a, c]
    with pytest.raises(InvalidField) as caught:
        await store.list_tenants(after="{no slug}")
    assert caught.value.field == "after"


async def test_what_an_operator_sets_is_what_every_request_finds(store: TenantStore) -> None:
    limits = TenantLimits(requests_per_minute=60, sockets=0)
    tenant, key = await store.create_tenant(
        "acme", edit=lambda new: replace(new, weight=0.5, limits=limits)
    )
    assert (tenant.weight, tenant.limits, tenant.revision) == (0.5, limits, 1)
    assert await who(store, key) == tenant
    changed = await store.update_tenant(
        "acme",
        lambda old: replace(
            old, name="Acme", cache="off", reserved_blocks=8, limits=replace(limits, blocks=4)
        ),
    )
    assert (changed.cache, changed.limits.blocks, changed.limits.sockets) == ("off", 4, 0)
    assert changed.revision == 2
    assert await who(store, key) == await store.get_tenant("acme") == changed


async def test_an_edit_cannot_make_another_tenant_of_it(store: TenantStore) -> None:
    tenant, _ = await store.create_tenant("acme")
    changed = await store.update_tenant(
        "acme",
        lambda old: replace(
            old, id="x", namespace_secret=b"", created_at=0.0, revision=9, weight=2.0
        ),
    )
    assert changed == replace(tenant, weight=2.0, revision=2)


async def test_a_change_of_nothing_keeps_the_revision(store: TenantStore) -> None:
    tenant, _ = await store.create_tenant("acme")
    assert await store.update_tenant("acme", lambda old: replace(old)) == tenant


async def test_an_edit_that_objects_leaves_a_tenant_as_it_is(store: TenantStore) -> None:
    await store.create_tenant("acme")
    changed = await store.update_tenant("acme", lambda old: replace(old, weight=2.0))

    def object_to(found: Tenant) -> Tenant:
        raise LookupError(found.revision)

    with pytest.raises(LookupError, match="2"):
        await store.update_tenant("acme", object_to)
    assert await store.get_tenant("acme") == changed


async def test_changes_at_the_same_time_are_all_made(
    store: TenantStore, redis_url: str, open_room: OpenRoom
) -> None:
    await store.create_tenant("acme")
    stores = [store, *[(await open_room(redis_url)).store for _ in range(2)]]

    def add(old: Tenant) -> Tenant:
        return replace(old, weight=old.weight + 1)

    await asyncio.gather(*(one.update_tenant("acme", add) for one in stores * 4))
    tenant = await store.get_tenant("acme")
    assert (tenant.weight, tenant.revision) == (13, 13)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": ""}, "name"),
        ({"weight": 0.0}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"weight": math.inf}, "weight"),
        ({"reserved_blocks": -1}, "reserved_blocks"),
        ({"status": "sleeping"}, "status"),
        ({"cache": "maybe"}, "cache"),
        ({"limits": TenantLimits(requests_per_minute=0)}, "limits.requests_per_minute"),
        ({"limits": TenantLimits(tokens_per_minute=-1)}, "limits.tokens_per_minute"),
        ({"limits": TenantLimits(tokens_per_day=10**13)}, "limits.tokens_per_day"),
        ({"limits": TenantLimits(pinned_blocks=-1)}, "limits.pinned_blocks"),
    ],
)
async def test_an_impossible_value_is_refused_by_name_and_changes_nothing(
    store: TenantStore, changed: dict[str, Any], field: str
) -> None:
    tenant, _ = await store.create_tenant("acme")

    def edit(old: Tenant) -> Tenant:
        return replace(old, **changed)

    with pytest.raises(InvalidField) as caught:
        await store.update_tenant("acme", edit)
    assert caught.value.field == field
    assert await store.get_tenant("acme") == tenant
    with pytest.raises(InvalidField) as caught:
        await store.create_tenant("umbra", edit=edit)
    assert caught.value.field == field
    assert await store.list_tenants() == [tenant]


@pytest.mark.parametrize("call", ["get_tenant", "delete_tenant", "rotate_key", "list_keys"])
async def test_what_is_done_to_a_tenant_that_is_not_there_says_so(
    store: TenantStore, raw: redis.Redis, call: str
) -> None:
    with pytest.raises(TenantNotFound, match="acme"):
        await getattr(store, call)("acme")
    assert not [key for key in everything(raw) if b"acme" in key]


async def fill(room: Room, tenant_id: str) -> str:
    """A tenant with something of everything; returns its key."""
    _, _ = await room.store.create_tenant(tenant_id)
    _, key = await room.store.rotate_key(tenant_id, overlap_seconds=60)
    await room.prompts.put(tenant_id, "law", "one")
    await room.prompts.put(tenant_id, "law", "two")
    await room.prompts.put(tenant_id, "gone", "three")
    await room.prompts.delete(tenant_id, "gone")
    await room.responses.save(tenant_id, "resp_1", b"blob", 60)
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
    assert b"tenant.delete" in left[b"pw:audit"]
    assert {name: left[name] for name in before} == before
    assert await who(room.store, key) is None
    assert await who(room.store, other_key) is not None
    assert await room.prompts.get("acme", "law") is None
    assert await room.prompts.find_by_text("acme", "two") is None
    assert await room.responses.load("acme", "resp_1") is None


async def test_an_id_that_is_used_again_starts_from_nothing(room: Room) -> None:
    old_key = await fill(room, "acme")
    old = await room.store.get_tenant("acme")
    await room.store.delete_tenant("acme")
    new, _ = await room.store.create_tenant("acme")
    assert new.namespace_secret != old.namespace_secret
    assert await who(room.store, old_key) is None
    assert await room.prompts.list("acme") == []
    assert await room.prompts.get("acme", "law") is None
    assert await room.responses.load("acme", "resp_1") is None


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
            if await who(healthy.store, key) is None:
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
            tenant, (_, key) = await healthy.get_tenant("acme"), await healthy.rotate_key("acme")
        assert await who(healthy, key) == tenant
        await healthy.delete_tenant("acme")
        assert everything(raw).keys() <= {b"pw:pepper", b"pw:audit"}
        if finished:
            break
    assert finished
    assert after > 2


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
