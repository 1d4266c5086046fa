"""Uploaded files, over a real server."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest.sealer import PIECE_BYTES
from tenants.errors import FileGone, FilesExceeded, InvalidField, StoreConflict
from tenants.keyring import Keyring
from tenants.records import Tenant, TenantLimits
from tenants.stored.files import FileRecord, NewFile, StoredFiles
from tests.tenants.conftest import Room, eventually, everything

LARGE = os.urandom(2 * PIECE_BYTES + 12345)


def new(content: bytes = b"a cat", ttl_seconds: float = 60) -> NewFile:
    return NewFile(content, "cat.png", "vision", ttl_seconds)


@pytest.fixture(autouse=True)
async def tenants(room: Room) -> dict[str, Tenant]:
    return {name: (await room.store.create_tenant(name))[0] for name in ("acme", "umbra")}


@pytest.fixture
def acme(tenants: dict[str, Tenant]) -> Tenant:
    return tenants["acme"]


async def content(room: Room, record: FileRecord) -> bytes:
    return b"".join([piece async for piece in room.files.read("acme", record)])


async def ids(room: Room, **fields: Any) -> list[str] | None:
    wanted = {"after": None, "newest_first": False, "limit": 100} | fields
    found = await room.files.listed("acme", **wanted)
    return None if found is None else [file_id for file_id, _ in found]


def of_acme(raw: redis.Redis) -> list[bytes]:
    return sorted(key for key in everything(raw) if b"{acme}:file" in key)


async def test_a_file_comes_back_as_it_came_and_no_piece_is_in_clear(
    room: Room, acme: Tenant, raw: redis.Redis
) -> None:
    kept = await room.files.put(acme, new(LARGE))
    assert await room.files.get("acme", kept.id) == kept
    assert await content(room, kept) == LARGE
    assert (kept.num_bytes, kept.pieces, kept.filename) == (len(LARGE), 3, "cat.png")
    held = b"".join(everything(raw).values())
    assert all(LARGE[at : at + 64] not in held for at in range(0, len(LARGE), 32_768))
    assert b"cat.png" not in held
    assert max(map(len, everything(raw).values())) <= 1 << 20


async def test_another_tenants_file_is_simply_not_there(room: Room, acme: Tenant) -> None:
    kept = await room.files.put(acme, new())
    assert await room.files.get("umbra", kept.id) is None
    assert not await room.files.delete("umbra", kept.id)
    assert await room.files.listed("umbra", None, newest_first=True, limit=10) == []
    with pytest.raises(FileGone):
        await anext(room.files.read("umbra", kept))
    assert await content(room, kept) == b"a cat"


@pytest.mark.parametrize("file_id", ["", "a" * 129, "a:b", "*", "}", "ä", "\ud800"])
async def test_an_id_that_cannot_be_is_not_found(room: Room, file_id: str) -> None:
    assert await room.files.get("acme", file_id) is None
    assert not await room.files.delete("acme", file_id)


async def test_a_deleted_file_leaves_nothing(room: Room, acme: Tenant, raw: redis.Redis) -> None:
    kept = await room.files.put(acme, new(LARGE))
    assert await room.files.delete("acme", kept.id)
    assert not await room.files.delete("acme", kept.id)
    assert await room.files.get("acme", kept.id) is None
    assert of_acme(raw) == [b"pw:{acme}:file-bytes"]
    assert raw.hgetall("pw:{acme}:file-bytes") == {b":total": b"0"}


async def test_a_file_that_goes_while_it_is_read_is_not_half_a_file(
    room: Room, acme: Tenant
) -> None:
    kept = await room.files.put(acme, new(LARGE))
    reading = room.files.read("acme", kept)
    assert await anext(reading) == LARGE[:PIECE_BYTES]
    await room.files.delete("acme", kept.id)
    with pytest.raises(FileGone):
        await anext(reading)


async def test_files_are_kept_for_their_time_and_count_no_longer(
    room: Room, acme: Tenant, raw: redis.Redis
) -> None:
    acme = replace(acme, limits=TenantLimits(files=2))
    kept = await room.files.put(acme, new())
    short = await room.files.put(acme, new(LARGE, 0.3))
    with pytest.raises(FilesExceeded, match="2 files may be kept"):
        await room.files.put(acme, new())
    assert 59_000 < raw.pttl(redis_keys.file("acme", kept.id)) <= 60_000
    assert 59_000 < raw.pttl(redis_keys.file_piece("acme", kept.id, 0)) <= 60_000

    async def gone() -> bool:
        return await ids(room) == [kept.id]

    await eventually(gone)
    assert await room.files.get("acme", short.id) is None
    assert raw.hget("pw:{acme}:file-bytes", ":total") == b"5"
    await room.files.put(acme, new())


async def test_no_file_is_kept_for_no_time(room: Room, acme: Tenant) -> None:
    with pytest.raises(InvalidField, match="ttl_seconds"):
        await room.files.put(acme, new(ttl_seconds=0))


async def test_no_more_bytes_are_kept_than_a_tenant_may_have(
    room: Room, acme: Tenant, raw: redis.Redis
) -> None:
    files = StoredFiles(room.redis, room.keyring, TenantLimits(file_bytes=10))
    kept = await files.put(acme, new(b"123456"))
    with pytest.raises(FilesExceeded, match="10 bytes of files may be kept"):
        await files.put(acme, new(b"12345"))
    await files.put(acme, new(b"1234"))
    with pytest.raises(FilesExceeded):
        await files.put(replace(acme, limits=TenantLimits(files=0)), new(b""))
    await files.put(replace(acme, limits=TenantLimits(file_bytes=16)), new(b"123456"))
    await files.delete("acme", kept.id)
    assert raw.hget("pw:{acme}:file-bytes", ":total") == b"10"
    assert len(list(raw.scan_iter("pw:{acme}:file-piece:*"))) == 2


async def test_lists_are_in_the_order_of_making(room: Room, acme: Tenant) -> None:
    made = [(await room.files.put(acme, new())).id for _ in range(5)]
    assert await ids(room) == made
    assert await ids(room, newest_first=True, limit=2) == [made[4], made[3]]
    assert await ids(room, newest_first=True, after=made[3]) == [made[2], made[1], made[0]]
    assert await ids(room, after=made[1], limit=2) == [made[2], made[3]]
    assert await ids(room, after=made[4]) == []
    assert await ids(room, after="file-none") is None


async def test_files_go_with_their_tenant(room: Room, acme: Tenant, raw: redis.Redis) -> None:
    kept = await room.files.put(acme, new(LARGE))
    await room.store.delete_tenant("acme")
    assert of_acme(raw) == []
    after, _ = await room.store.create_tenant("acme")
    assert await room.files.get("acme", kept.id) is None
    with pytest.raises(StoreConflict):  # of a tenant that was called so
        await room.files.put(acme, new())
    assert of_acme(raw) == []
    await room.files.put(after, new())


async def test_a_file_that_its_tenant_did_not_outlive_leaves_nothing(
    room: Room, acme: Tenant, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, sealed = Keyring.seal, 0

    async def deleting(self: Keyring, owner: str, piece: bytes, *place: str) -> bytes | None:
        nonlocal sealed
        sealed += 1
        if sealed == 2:
            await room.store.delete_tenant("acme")
        return await seal(self, owner, piece, *place)

    monkeypatch.setattr(Keyring, "seal", deleting)
    with pytest.raises(StoreConflict):
        await room.files.put(acme, new(LARGE))
    assert of_acme(raw) == []


async def test_what_has_come_of_a_file_that_fails_is_removed(
    room: Room, acme: Tenant, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = Keyring.seal

    async def failing(self: Keyring, owner: str, piece: bytes, *place: str) -> bytes | None:
        if place[0].endswith(":2"):
            raise RuntimeError
        return await seal(self, owner, piece, *place)

    monkeypatch.setattr(Keyring, "seal", failing)
    with pytest.raises(RuntimeError):
        await room.files.put(acme, new(LARGE))
    assert of_acme(raw) == [b"pw:{acme}:file-bytes"]
    assert await ids(room) == []


async def test_room_is_given_back_whose_taker_has_left_before_it_heard_of_it(
    room: Room, acme: Tenant, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = StoredFiles._reserve

    async def left(self: StoredFiles, tenant: Tenant, record: FileRecord) -> None:
        await reserve(self, tenant, record)
        raise asyncio.CancelledError

    monkeypatch.setattr(StoredFiles, "_reserve", left)
    with pytest.raises(asyncio.CancelledError):
        await room.files.put(acme, new(LARGE))
    assert of_acme(raw) == [b"pw:{acme}:file-bytes"]
    assert raw.hgetall("pw:{acme}:file-bytes") == {b":total": b"0"}


async def test_a_full_store_still_lets_go_of_files(
    room: Room, acme: Tenant, raw: redis.Redis
) -> None:
    kept = await room.files.put(acme, new(LARGE))
    before = raw.config_get("maxmemory")["maxmemory"]
    raw.config_set("maxmemory", 1)
    try:
        assert await room.files.delete("acme", kept.id)
    finally:
        raw.config_set("maxmemory", before)
    assert await ids(room) == []
