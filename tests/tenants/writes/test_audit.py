"""The audit stream: a line for every write that changed something, none for any other."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from pathlib import Path

import msgspec
import pytest
import redis
from msgspec.structs import replace

from tenants.at_rest.pepper import Peppers
from tenants.errors import (
    InvalidField,
    StoreConflict,
    StoreError,
    TenantExists,
)
from tenants.groups import ShareGroups
from tenants.store import TenantStore
from tenants.writes.audit import UNTRIMMED, AuditEntry, AuditKeeper
from tests.tenants.conftest import OpenRoom, Room, eventually, everything, named


def summary(entry: AuditEntry) -> tuple[str, str, str, str]:
    return (entry.actor, entry.action, entry.owner, entry.target)


async def test_every_write_is_in_the_audit_with_who_what_and_when(room: Room) -> None:
    began = time.time()
    await room.groups.create("law", actor="ann")
    await room.groups.update("law", lambda law: replace(law, name="Lawyers"), actor="ann")
    await room.store.create_tenant("acme", actor="bob")
    (first,) = await room.store.list_keys("acme")
    await room.store.update_tenant("acme", lambda one: replace(one, share_group="law"), actor="bob")
    key, _ = await room.store.create_key("acme", "laptop", actor="bob")
    await room.store.update_key(
        "acme", key.id, lambda old: replace(old, name="tablet"), actor="bob"
    )
    await room.store.rotate_key("acme", first.id, 60, actor="bob")
    await room.store.revoke_key("acme", key.id, actor="bob")
    await room.prompts.put("@law", "head", "one", actor="ann")
    await room.prompts.put("acme", "head", "one", actor="ann")
    await room.prompts.put("acme", "head", "two", activate=False, actor="ann")
    await room.prompts.activate("acme", "head", 2, actor="ann")
    await room.prompts.set_pinned("acme", "head", True, actor="ann")
    await room.prompts.set_pinned("acme", "head", False, actor="ann")
    await room.prompts.delete("acme", "head", actor="ann")
    await room.store.delete_tenant("acme", actor="bob")
    await room.groups.delete("law")
    entries = await room.audit.read()
    assert [summary(entry) for entry in reversed(entries)] == [
        ("ann", "group.create", "@law", ""),
        ("ann", "group.update", "@law", ""),
        ("bob", "tenant.create", "acme", ""),
        ("bob", "tenant.update", "acme", ""),
        ("bob", "key.create", "acme", key.id),
        ("bob", "key.update", "acme", key.id),
        ("bob", "key.rotate", "acme", first.id),
        ("bob", "key.revoke", "acme", key.id),
        ("ann", "prompt.put", "@law", "head"),
        ("ann", "prompt.put", "acme", "head"),
        ("ann", "prompt.put", "acme", "head"),
        ("ann", "prompt.activate", "acme", "head"),
        ("ann", "prompt.pin", "acme", "head"),
        ("ann", "prompt.unpin", "acme", "head"),
        ("ann", "prompt.delete", "acme", "head"),
        ("bob", "tenant.delete", "acme", ""),
        ("system", "group.delete", "@law", ""),
    ]
    # The store's clock is that of this machine, but may be some milliseconds behind by rounding.
    times = [entry.at for entry in reversed(entries)]
    assert times == sorted(times)
    assert began - 1 < times[0]
    assert times[-1] < time.time() + 1


async def test_an_entry_says_what_was_before_and_what_came_after(room: Room) -> None:
    await room.store.create_tenant("acme", "Acme")
    await room.store.update_tenant("acme", lambda tenant: replace(tenant, weight=2.5))
    updated, created = await room.audit.read()
    assert (created.before, updated.before) == (None, created.after)
    assert created.after is not None
    assert updated.after == {**created.after, "weight": 2.5, "revision": 2}
    await room.prompts.put("acme", "head", "one")
    await room.prompts.put("acme", "head", "two")
    entry = (await room.audit.read(limit=1))[0]
    assert entry.before == {"active_version": 1, "last_version": 1, "pinned": False}
    assert entry.after == {"active_version": 2, "last_version": 2, "pinned": False}
    await room.prompts.delete("acme", "head")
    assert (await room.audit.read(limit=1))[0].after is None


async def test_no_secret_is_in_the_audit(room: Room, raw: redis.Redis) -> None:
    group = await room.groups.create("law")
    tenant, first = await room.store.create_tenant("acme")
    key, second = await room.store.create_key("acme", "laptop")
    _, third = await room.store.rotate_key("acme", key.id)
    await room.prompts.put("acme", "head", "You are a counsel of Acme.")
    await room.store.delete_tenant("acme")
    await room.groups.delete("law")
    held = everything(raw)[b"pw:audit"]
    assert b"laptop" in held
    secrets = [tenant.namespace_secret, group.namespace_secret, key.digest, b"counsel"]
    secrets += [one.partition(".")[2].encode() for one in (first, second, third)]
    for secret in secrets:
        assert secret not in held
        assert secret.hex().encode() not in held


async def test_what_changes_nothing_leaves_no_entry(room: Room) -> None:
    await room.groups.create("law")
    await room.store.create_tenant("acme", edit=lambda new: replace(new, share_group="law"))
    (key,) = await room.store.list_keys("acme")
    await room.prompts.put("acme", "head", "one")
    before = await room.audit.read()
    await room.store.update_tenant("acme", lambda tenant: tenant)
    await room.store.update_key("acme", key.id, lambda old: old)
    await room.groups.update("law", lambda law: law)
    await room.prompts.put("acme", "head", "one")
    await room.prompts.activate("acme", "head", 1)
    await room.prompts.set_pinned("acme", "head", False)
    for refused, error in (
        (room.store.create_tenant("acme"), TenantExists),
        (room.store.update_tenant("acme", lambda one: replace(one, weight=-1.0)), InvalidField),
        (room.groups.delete("law"), StoreConflict),
    ):
        with pytest.raises(error):
            await refused
    assert await room.audit.read() == before
    await room.store.update_tenant("acme", lambda tenant: replace(tenant, weight=2.0))
    assert len(await room.audit.read()) == len(before) + 1


async def test_writes_at_the_same_time_leave_one_entry_each_that_fit_together(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    await room.store.create_tenant("acme")
    rooms = [room, await open_room(redis_url), await open_room(redis_url)]

    async def add(one: Room) -> None:
        await one.store.update_tenant("acme", lambda old: replace(old, weight=old.weight + 1))

    await asyncio.gather(*(add(one) for one in rooms * 4))
    entries = (await room.audit.read())[::-1]
    assert [entry.action for entry in entries] == ["tenant.create"] + ["tenant.update"] * 12
    for previous, entry in itertools.pairwise(entries):
        assert entry.before == previous.after
    assert entries[-1].after is not None
    assert entries[-1].after["weight"] == 13


async def test_the_audit_is_read_page_by_page_in_both_directions(room: Room) -> None:
    for number in range(5):
        await room.store.create_tenant(f"t{number}")
    newest_first = await room.audit.read()
    assert [entry.owner for entry in newest_first] == ["t4", "t3", "t2", "t1", "t0"]
    page = await room.audit.read(limit=2)
    assert page == newest_first[:2]
    assert await room.audit.read(before=page[-1].id, limit=2) == newest_first[2:4]
    assert await room.audit.read(before=newest_first[-1].id) == []
    oldest = newest_first[-1]
    assert await room.audit.read(after="0-0", limit=1) == [oldest]
    assert await room.audit.read(after=oldest.id, limit=2) == newest_first[::-1][1:3]
    assert await room.audit.read(after=newest_first[0].id) == []


async def test_the_audit_of_one_owner_is_found_among_any_number_of_others(room: Room) -> None:
    await room.store.create_tenant("acme")
    await room.store.create_tenant("umbra")
    for number in range(1100):
        await room.redis.execute(
            *("XADD", "pw:audit", "*", "actor", "x", "action", "tenant.update", "owner", "umbra"),
            *("target", "", "before", f"{number}", "after", "null"),
        )
    await room.prompts.put("acme", "head", "one")
    found = await room.audit.read(owner="acme")
    assert [entry.action for entry in found] == ["prompt.put", "tenant.create"]
    assert await room.audit.read(owner="acme", limit=1) == found[:1]
    assert await room.audit.read(owner="acme", before=found[0].id) == found[1:]
    assert await room.audit.read(owner="acme", after="0-0", limit=1) == found[1:]
    others = await room.audit.read(owner="umbra", limit=1050)
    assert len({entry.id for entry in others}) == 1050
    assert await room.audit.read(owner="nobody") == await room.audit.read(owner="\ud800") == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"before": "x"}, "before"),
        ({"before": "+"}, "before"),
        ({"after": "1"}, "after"),
        ({"after": "1-\ud800"}, "after"),
        ({"before": "1-1", "after": "1-1"}, "after"),
        ({"limit": 0}, "limit"),
    ],
)
async def test_an_impossible_cursor_is_refused_by_name(
    room: Room, arguments: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        await room.audit.read(**arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


async def test_the_audit_keeps_about_as_many_entries_as_it_is_told(
    room: Room, raw: redis.Redis, peppers: Peppers
) -> None:
    store = TenantStore(room.redis, peppers, audit_max_entries=100)
    groups = ShareGroups(room.redis, peppers, audit_max_entries=100)
    await store.create_tenant("acme")
    for number in range(150):
        await groups.create(f"g{number}")
        with contextlib.suppress(StoreError):
            await store.update_tenant("acme", lambda one: replace(one, weight=one.weight + 1))
    assert 200 <= raw.xlen("pw:audit") <= 300
    await AuditKeeper(room.redis, 100).trim()
    assert raw.xlen("pw:audit") == 100
    newest = (await room.audit.read(limit=1))[0]
    assert newest.action == "tenant.update"


async def test_who_writes_much_pushes_nobodys_lines_out_but_their_own(
    room: Room, raw: redis.Redis
) -> None:
    for name in ("acme", "umbra", "nova"):
        await room.store.create_tenant(name)
    for number in range(30):
        await room.store.update_tenant("umbra", named(f"{number}"))
    for number in range(200):
        await room.store.update_tenant("acme", named(f"{number}"))
    await AuditKeeper(room.redis, 80).trim()
    left = [await room.audit.read(owner=name, limit=999) for name in ("acme", "umbra", "nova")]
    assert [len(one) for one in left] == [48, 31, 1]
    assert [one.after["name"] for one in left[0] if one.after][-1] == "152"  # the newest of them
    assert raw.xlen("pw:audit") == 80


async def test_a_line_is_in_the_file_before_it_goes(
    room: Room, raw: redis.Redis, tmp_path: Path, peppers: Peppers
) -> None:
    file = tmp_path / "audit.jsonl"
    store = TenantStore(room.redis, peppers, audit_max_entries=UNTRIMMED)
    await store.create_tenant("acme")
    for number in range(300):
        await store.update_tenant("acme", named(f"{number}"))
    keeper = AuditKeeper(room.redis, 50, file)
    await keeper.trim()
    assert raw.xlen("pw:audit") == 301
    await keeper.write_out()
    for number in range(20):
        await store.update_tenant("acme", named(f"more-{number}"))
    await keeper.trim()
    assert raw.xlen("pw:audit") == 50
    await AuditKeeper(room.redis, 50, file).write_out()  # goes on where that has stopped
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    assert len(lines) == len({line["id"] for line in lines}) == 321
    assert lines[-1]["after"]["name"] == "more-19"
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_takes_no_lines_keeps_all_in_the_store(
    room: Room, raw: redis.Redis, tmp_path: Path
) -> None:
    await room.store.create_tenant("acme")
    for number in range(99):
        await room.store.update_tenant("acme", named(f"{number}"))
    keeper = AuditKeeper(room.redis, 10, tmp_path)
    with pytest.raises(IsADirectoryError):
        await keeper.write_out()
    await keeper.trim()
    assert raw.xlen("pw:audit") == 100


async def test_one_process_keeps_the_audit_at_a_time(room: Room, tmp_path: Path) -> None:
    await room.store.create_tenant("acme")
    keepers = [AuditKeeper(room.redis, 10, tmp_path / f"{number}") for number in range(3)]
    running = [asyncio.create_task(one.run()) for one in keepers]

    async def is_written() -> bool:
        return bool(os.listdir(tmp_path))

    await eventually(is_written)
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert len(os.listdir(tmp_path)) == 1


async def test_what_nobody_here_wrote_keeps_no_entry_from_its_file(
    room: Room, raw: redis.Redis, tmp_path: Path
) -> None:
    file = tmp_path / "audit"
    keeper = AuditKeeper(room.redis, 2, file)
    raw.xadd("pw:audit", {"x": b"\xff"})
    raw.xadd("pw:audit", {"owner": "acme", "before": "junk", "after": "[1]"})
    await room.store.create_tenant("acme")
    for junk in ("junk", b"\xff", "999999999999999-0", "-"):
        raw.set("pw:audit-written", junk)
        await keeper.write_out()
        lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
        assert [line["action"] for line in lines] == ["", "", "tenant.create"]
        file.unlink()
    assert [entry.action for entry in await room.audit.read()] == ["tenant.create", "", ""]
    raw.set("pw:audit-written", "999999999999999-0")
    await keeper.trim()
    assert raw.xlen("pw:audit") == 3  # for all that is known, none is in the file
    await keeper.write_out()
    await keeper.trim()
    assert raw.xlen("pw:audit") == 2
