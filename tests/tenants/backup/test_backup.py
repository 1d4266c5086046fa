"""What is kept of tenants comes back out of a file as it was, or nothing is changed."""

from __future__ import annotations

import os
import random
import secrets
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tenants import redis_keys
from tenants.at_rest import pepper_record
from tenants.at_rest.pepper import Peppers
from tenants.backup import Backup
from tenants.errors import BackupUnusable, PepperMismatch, StoreNotEmpty, StoreUnsupported
from tenants.keys.operator_tokens import OperatorTokens
from tenants.storage.schema import SCHEMA, check_schema
from tests.tenants.adapters.putting import put
from tests.tenants.conftest import Room


def contents(raw: redis.Redis) -> dict[str, Any]:
    """All keys with their values and when they expire, but for what a cluster's writes leave."""
    found: dict[str, Any] = {}
    for name in raw.scan_iter("pw:*"):
        key, kind = name.decode(), raw.type(name).decode()  # type: ignore[union-attr]
        if key.startswith("pw:step:"):
            continue
        value: Any
        match kind:
            case "string":
                value = raw.get(key)
            case "hash":
                value = raw.hgetall(key)
            case "set":
                value = raw.smembers(key)
            case "zset":
                value = raw.zrange(key, 0, -1, withscores=True)
            case _:
                value = raw.xrange(key)
        found[key] = kind, value, raw.pexpiretime(key)
    return found


@pytest.fixture
async def filled(room: Room, raw: redis.Redis, peppers: Peppers) -> Room:
    """A store with something of every kind of key."""
    await check_schema(room.redis)
    tenant, _ = await room.store.create_tenant("acme")
    await room.groups.create("wall")
    await OperatorTokens(room.redis, peppers).create("ci")
    await room.prompts.put("acme", "law", "You are the lawyer of acme.")
    await put(room.adapters)
    await room.responses.save(tenant.id, "resp_1", b"said", 1000)
    raw.zadd(redis_keys.stored(tenant.id), {"x": 1.5, "y": float("inf")})
    raw.sadd(redis_keys.members("@wall"), "acme", "other")
    raw.set(redis_keys.idempotency(b"1"), b"\x00\xff", px=500_000)
    audit = raw.pipeline()
    for number in range(1100):  # more than a page
        audit.xadd(redis_keys.AUDIT, {"what": str(number), "who": "cli"})
    audit.execute()
    return room


def same_pepper(room: Room, peppers: Peppers) -> Backup:
    return Backup(room.redis, peppers)


async def test_everything_comes_back(
    filled: Room, raw: redis.Redis, peppers: Peppers, tmp_path: Path
) -> None:
    key = (await filled.store.create_key("acme", "spare"))[1]
    before = contents(raw)
    backup = same_pepper(filled, peppers)
    assert await backup.save(tmp_path / "file") == len(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        await backup.save(tmp_path / "file")
    for name in before:
        raw.delete(name)
    assert await backup.load(tmp_path / "file") == len(before)
    assert contents(raw) == before
    assert await filled.store.authenticate(key) is not None
    with pytest.raises(StoreNotEmpty):
        await backup.load(tmp_path / "file")
    raw.set("pw:{late}:meta", b"made since")
    assert await backup.load(tmp_path / "file", replaces=True) == len(before)
    assert contents(raw) == before


async def test_what_holds_of_requests_under_way_is_left_out(
    filled: Room, raw: redis.Redis, peppers: Peppers, tmp_path: Path
) -> None:
    raw.zadd(redis_keys.streams("acme"), {"r": time.time() + 60})
    raw.set(redis_keys.running("acme", "resp_2"), b"running")
    raw.set(redis_keys.step("pw:tenants", "w"), b"1")
    kept = len(contents(raw)) - 2
    assert await same_pepper(filled, peppers).save(tmp_path / "file") == kept


async def test_a_file_that_is_not_whole_changes_nothing(
    filled: Room, raw: redis.Redis, peppers: Peppers, tmp_path: Path
) -> None:
    backup = same_pepper(filled, peppers)
    await backup.save(tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    before, draw, bad = contents(raw), random.Random(0), tmp_path / "bad"
    cuts = [0, 1, 3, 4, 5, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(25))]
    damaged = [whole[:cut] for cut in cuts] + [whole + b"x", b"\xff\xff\xff\xff" + whole]
    for _ in range(25):
        at = draw.randrange(len(whole))
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
    for data in damaged:
        bad.write_bytes(data)
        with pytest.raises(BackupUnusable):
            await backup.load(bad, replaces=True)
    assert contents(raw) == before


async def test_another_pepper_is_refused(
    filled: Room, raw: redis.Redis, peppers: Peppers, tmp_path: Path
) -> None:
    await filled.store.check_pepper()
    await same_pepper(filled, peppers).save(tmp_path / "file")
    before = contents(raw)
    other = Backup(filled.redis, Peppers(secrets.token_bytes(32)))
    with pytest.raises(PepperMismatch):
        await other.load(tmp_path / "file", replaces=True)
    assert contents(raw) == before


async def test_a_newer_store_is_refused(room: Room, raw: redis.Redis) -> None:
    await check_schema(room.redis)
    await check_schema(room.redis)
    assert raw.get(redis_keys.SCHEMA) == str(SCHEMA).encode()
    raw.set(redis_keys.SCHEMA, SCHEMA + 1)
    with pytest.raises(StoreUnsupported, match="update it"):
        await check_schema(room.redis)


async def test_a_newer_backup_is_refused(
    filled: Room, peppers: Peppers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.backup.SCHEMA", SCHEMA + 1)
    await same_pepper(filled, peppers).save(tmp_path / "file")
    monkeypatch.undo()
    with pytest.raises(BackupUnusable, match="update Partywall"):
        await same_pepper(filled, peppers).load(tmp_path / "file", replaces=True)


async def test_a_backup_that_fails_leaves_no_file(
    filled: Room, peppers: Peppers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.backup._MOST_FRAME_BYTES", 10_000)
    with pytest.raises(BackupUnusable, match="more than"):  # the audit
        await same_pepper(filled, peppers).save(tmp_path / "file")
    assert not os.listdir(tmp_path)


async def test_a_file_from_before_a_pepper_was_replaced_needs_that_pepper(
    filled: Room, raw: redis.Redis, peppers: Peppers, tmp_path: Path
) -> None:
    new = secrets.token_bytes(32)
    both = Peppers(new, peppers.current)
    await same_pepper(filled, peppers).save(tmp_path / "old")
    await pepper_record.join(filled.redis, both)
    await same_pepper(filled, both).save(tmp_path / "new")
    before = contents(raw)
    for name, known in (("old", Peppers(new)), ("new", peppers), ("new", Peppers(new))):
        with pytest.raises(PepperMismatch):
            await Backup(filled.redis, known).load(tmp_path / name, replaces=True)
    assert contents(raw) == before
    for name in ("old", "new"):
        await Backup(filled.redis, both).load(tmp_path / name, replaces=True)


async def test_what_somebody_has_put_into_the_store_is_not_in_its_backup(
    filled: Room,
    raw: redis.Redis,
    peppers: Peppers,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = await same_pepper(filled, peppers).save(tmp_path / "file")
    for key in ("pw:other", "pw:{acme}:other", b"pw:\xff"):
        raw.set(key, b"x")
    raw.rpush(redis_keys.usage("acme"), b"x")  # which is a hash
    assert await same_pepper(filled, peppers).save(tmp_path / "other") == kept
    assert "left out of the backup: pw:other" in caplog.text
    assert await same_pepper(filled, peppers).load(tmp_path / "other", replaces=True) == kept
    assert not raw.exists("pw:other")
