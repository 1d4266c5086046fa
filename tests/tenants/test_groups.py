"""Share groups: their members, and prompts that are theirs and nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from tenants import groups as module
from tenants.errors import (
    GroupExists,
    GroupNotFound,
    InvalidField,
    PromptNotFound,
    StoreConflict,
)
from tenants.groups import ShareGroups
from tenants.records import ShareGroup, Tenant
from tenants.usage.meter import UsageMeter
from tests.tenants.conftest import OpenRoom, Room, cut_off, everything, listening, named


@pytest.fixture
def groups(room: Room) -> ShareGroups:
    return room.groups


async def join(room: Room, tenant_id: str, group_id: str | None) -> Tenant:
    return await room.store.update_tenant(
        tenant_id, lambda tenant: replace(tenant, share_group=group_id)
    )


async def test_groups_are_listed_by_id_page_by_page(groups: ShareGroups) -> None:
    assert await groups.list() == []
    made = {name: await groups.create(name) for name in ("b", "c", "a")}
    assert await groups.list() == [made["a"], made["b"], made["c"]]
    assert await groups.list(limit=2) == [made["a"], made["b"]]
    assert await groups.list(after="b", limit=2) == [made["c"]]
    assert await groups.get("b") == made["b"]
    with pytest.raises(InvalidField) as caught:
        await groups.list(after="\ud800")
    assert caught.value.field == "after"


async def test_a_group_has_a_secret_of_its_own_that_stays_out_of_logs(groups: ShareGroups) -> None:
    one, two = await groups.create("one"), await groups.create("two", "Two & Söhne")
    assert (one.name, two.name) == ("one", "Two & Söhne")
    assert one.namespace_key != two.namespace_key
    assert str(one.namespace_secret) not in f"{one} {[one]}"


async def test_a_taken_id_is_refused_and_its_owner_untouched(groups: ShareGroups) -> None:
    group = await groups.create("law")
    with pytest.raises(GroupExists, match="law"):
        await groups.create("law", "other")
    assert await groups.get("law") == group


@pytest.mark.parametrize(
    ("group_id", "name", "field"),
    [("", "x", "id"), ("@law", "x", "id"), ("a:b", "x", "id"), ("law", "", "name")],
)
async def test_what_cannot_be_a_group_is_refused_by_name(
    groups: ShareGroups, raw: redis.Redis, group_id: str, name: str, field: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        await groups.create(group_id, name)
    assert caught.value.field == field
    assert not everything(raw)


async def test_a_group_is_renamed(groups: ShareGroups) -> None:
    group = await groups.create("law")
    renamed = await groups.update("law", named("Lawyers"))
    assert renamed == replace(group, name="Lawyers", revision=2)
    assert await groups.get("law") == renamed
    assert await groups.update("law", named("Lawyers")) == renamed
    with pytest.raises(InvalidField):
        await groups.update("law", named("two\nlines"))


async def test_an_edit_that_objects_leaves_a_group_as_it_is(groups: ShareGroups) -> None:
    group = await groups.create("law")

    def object_to(found: ShareGroup) -> ShareGroup:
        raise LookupError(found.revision)

    with pytest.raises(LookupError, match="1"):
        await groups.update("law", object_to)
    assert await groups.get("law") == group


async def test_what_is_done_to_a_group_that_is_not_there_says_so(room: Room) -> None:
    for group_id in ("law", "no slug", "\ud800"):
        for call in (
            room.groups.get(group_id),
            room.groups.members(group_id),
            room.groups.update(group_id, named("Law")),
            room.groups.delete(group_id),
            room.prompts.put(f"@{group_id}", "law", "one"),
        ):
            with pytest.raises(GroupNotFound):
                await call


async def test_tenants_join_move_and_leave(room: Room) -> None:
    for group_id in ("law", "tax"):
        await room.groups.create(group_id)
    _, key = await room.store.create_tenant("acme")
    await room.store.create_tenant("umbra", edit=lambda new: replace(new, share_group="law"))
    joined = await join(room, "acme", "law")
    assert joined.share_group == "law"
    assert await room.groups.members("law") == ["acme", "umbra"]
    principal = await room.store.authenticate(key)
    assert principal is not None
    assert principal.group == await room.groups.get("law")
    await join(room, "acme", "tax")
    assert await room.groups.members("law") == ["umbra"]
    assert await room.groups.members("tax") == ["acme"]
    await join(room, "acme", None)
    assert await room.groups.members("tax") == []
    principal = await room.store.authenticate(key)
    assert principal is not None
    assert principal.group is None
    await room.store.delete_tenant("umbra")
    assert await room.groups.members("law") == []


@pytest.mark.parametrize("group_id", ["law", "", "no slug", "acme", "\ud800"])
async def test_a_tenant_cannot_join_what_is_not_there(room: Room, group_id: str) -> None:
    acme, _ = await room.store.create_tenant("acme")
    with pytest.raises(InvalidField) as caught:
        await join(room, "acme", group_id)
    assert caught.value.field == "share_group"
    assert await room.store.get_tenant("acme") == acme
    with pytest.raises(InvalidField) as caught:
        await room.store.create_tenant("umbra", edit=lambda new: replace(new, share_group=group_id))
    assert caught.value.field == "share_group"
    assert await room.store.list_tenants() == [acme]


async def test_a_groups_prompts_are_neither_a_tenants_nor_another_groups(room: Room) -> None:
    law, tax = await room.groups.create("law"), await room.groups.create("tax")
    await room.store.create_tenant("law")
    prompt = await room.prompts.put(law.owner, "head", "one")
    assert await room.prompts.get(law.owner, "head") == prompt
    assert await room.prompts.find_by_text(law.owner, "one") == prompt
    assert await room.prompts.list(law.owner) == [prompt]
    for owner in (tax.owner, "law"):
        assert await room.prompts.get(owner, "head") is None
        assert await room.prompts.find_by_text(owner, "one") is None
        assert await room.prompts.list(owner) == []


async def test_a_group_with_members_stays_and_without_them_goes_with_its_prompts(
    room: Room, raw: redis.Redis
) -> None:
    law = await room.groups.create("law")
    await room.store.create_tenant("acme", edit=lambda new: replace(new, share_group="law"))
    await room.prompts.put(law.owner, "head", "the wording")
    with pytest.raises(StoreConflict, match="acme"):
        await room.groups.delete("law")
    assert await room.prompts.get(law.owner, "head") is not None
    await join(room, "acme", None)
    await room.groups.delete("law")
    assert await room.prompts.get(law.owner, "head") is None
    with pytest.raises(PromptNotFound):
        await room.prompts.activate(law.owner, "head", 1)
    assert await room.groups.list() == []
    assert not [key for key in everything(raw) if b"@law" in key]
    again = await room.groups.create("law")
    assert again.namespace_key != law.namespace_key


async def test_nobody_joins_a_group_that_is_being_deleted(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    others = [await open_room(redis_url) for _ in range(4)]
    await room.store.create_tenant("acme")
    for _ in range(10):
        await room.groups.create("law")
        joining = (join(one, "acme", "law") for one in others)
        *joined, deleted = await asyncio.gather(
            *joining, room.groups.delete("law"), return_exceptions=True
        )
        if deleted is None:
            assert all(isinstance(outcome, InvalidField | Tenant) for outcome in joined)
            assert (await room.store.get_tenant("acme")).share_group is None
        else:
            assert isinstance(deleted, StoreConflict)
            assert await room.groups.members("law") == ["acme"]
            await join(room, "acme", None)
            await room.groups.delete("law")


async def test_nobody_joins_a_group_that_goes_at_the_last_moment(
    room: Room, redis_url: str, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = await open_room(redis_url)
    await operator.groups.create("law")
    acme, _ = await operator.store.create_tenant("acme")
    commit = room.redis.run_script

    async def commit_too_late(*arguments: Any) -> Any:
        monkeypatch.undo()
        await operator.groups.delete("law")
        return await commit(*arguments)

    monkeypatch.setattr(room.redis, "run_script", commit_too_late)
    with pytest.raises(InvalidField) as caught:
        await join(room, "acme", "law")
    assert caught.value.field == "share_group"
    assert await room.store.get_tenant("acme") == acme


async def test_a_deletion_cut_off_anywhere_is_finished_by_another(
    raw: redis.Redis, redis_url: str, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = await open_room(redis_url)
    for after in range(50):
        law = await healthy.groups.create("law")
        await healthy.prompts.put(law.owner, "head", "one")
        dying = await open_room(redis_url)
        left = cut_off(dying, monkeypatch, after)
        (outcome,) = await asyncio.gather(dying.groups.delete("law"), return_exceptions=True)
        if outcome is not None:
            await healthy.groups.delete("law")
        assert everything(raw).keys() <= {b"pw:audit"}
        if left[0] > 0:
            break
    assert left[0] > 0
    assert after > 2


async def test_what_happens_to_a_group_another_process_hears_of(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    remembering = await open_room(redis_url, cache_seconds=3600)
    law = await room.groups.create("law")
    _, key = await room.store.create_tenant(
        "acme", edit=lambda new: replace(new, share_group="law")
    )
    async with listening(remembering) as heard:
        principal = await remembering.store.authenticate(key)
        assert principal is not None
        assert principal.group == law
        assert await remembering.prompts.get(law.owner, "head") is None
        renamed = await room.groups.update("law", named("Lawyers"))
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.name) == ("group", "law")
        principal = await remembering.store.authenticate(key)
        assert principal is not None
        assert principal.group == renamed
        prompt = await room.prompts.put(law.owner, "head", "one")
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.tenant_id, change.name) == ("prompts", "@law", "head")
        assert await remembering.prompts.get(law.owner, "head") == prompt
        await join(room, "acme", None)
        await asyncio.wait_for(heard.get(), 20)
        await room.groups.delete("law")
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.name) == ("group", "law")
        assert await remembering.prompts.get(law.owner, "head") is None


async def test_usage_that_comes_while_a_group_is_deleted_is_not_the_next_ones(
    room: Room, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await room.groups.create("law")
    meter = UsageMeter(room.redis)
    real = module.clear_slot

    async def clear_and_be_late(*arguments: Any, **named: Any) -> None:
        await real(*arguments, **named)
        meter.add_shared("@law", generation=group.generation, computed_tokens=5)
        await meter.flush()

    monkeypatch.setattr(module, "clear_slot", clear_and_be_late)
    await room.groups.delete("law")
    assert raw.exists("pw:{@law}:usage") == 0
