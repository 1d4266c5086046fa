"""Peppers and namespace secrets are replaced while services run, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path

import pytest
import redis

from tenants import redis_keys
from tenants.at_rest import pepper_record
from tenants.at_rest.pepper import Peppers, fingerprint, load_peppers
from tenants.errors import InvalidField, PepperMismatch, StoreConflict, StoreUnavailable
from tenants.idempotency import Attempt, Idempotency
from tenants.records import MAX_FORMER_SECRETS
from tenants.rotation import rotation
from tenants.rotation.rotation import Left, Rotation
from tenants.storage.connection import GuardedRedis
from tenants.stored.files import NewFile
from tenants.stored.objects import REVISION_BYTES, EditedObjects
from tenants.stored.running import RunningResponses
from tests.tenants.adapters.putting import put, read
from tests.tenants.conftest import Room, cut_off, everything, who

OLD, NEW = b"o" * 32, b"n" * 32
BEFORE, AFTER = Peppers(OLD), Peppers(NEW, OLD)


def rotating(room: Room, peppers: Peppers) -> Rotation:
    return Rotation(room.redis, peppers, room.keyring, room.store, room.prompts)


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Former secrets are dropped at once, but where a test is about that."""
    monkeypatch.setattr(rotation, "SETTLE_SECONDS", -1.0)


@pytest.fixture
def link(room: Room) -> GuardedRedis:
    return room.redis


async def filled(link: GuardedRedis, peppers: Peppers) -> tuple[Room, str]:
    """A store with something of each kind, and an API key."""
    room = Room(link, peppers, cache_seconds=0)
    _, key = await room.store.create_tenant("acme")
    await room.groups.create("law")
    for owner in ("acme", "@law"):
        for text in ("one", "two"):
            await room.prompts.put(owner, "support", text)
        await put(room.adapters, owner, weights=b"weights of " + owner.encode())
    await room.responses.save("acme", "resp_1", b"answer", 60)
    await _conversations(room).put("acme", "conv_1", b"talk", 60, listed_at=1.0)
    acme = await room.store.get_tenant("acme")
    await room.files.put(acme, NewFile(b"a cat", "cat.png", "vision", 60))
    running = RunningResponses(link, room.keyring)
    running.note_begin("acme", "resp_2", b"running")
    assert await running._write()
    return room, key


def _conversations(room: Room) -> EditedObjects:
    return EditedObjects(room.redis, room.keyring, "conversation")


async def check_filled(room: Room, key: str) -> None:
    """That all of it is there."""
    found = await who(room.store, key)
    assert found is not None
    assert found.id == "acme"
    for owner in ("acme", "@law"):
        prompt = await room.prompts.find_by_text(owner, "one")
        assert prompt is not None
        assert (prompt.version, prompt.text) == (1, "one")
        assert [one.text for one in await room.prompts.versions(owner, "support")] == ["two", "one"]
        adapter = await room.adapters.get(owner, "rhyme")
        assert adapter is not None
        assert await read(room.adapters, adapter) == b"weights of " + owner.encode()
    assert await room.responses.load("acme", "resp_1") == b"answer"
    assert ((await _conversations(room).load("acme", "conv_1")) or b"")[REVISION_BYTES:] == b"talk"
    [(_, kept)] = await room.files.listed("acme", None, newest_first=True, limit=10) or ()
    assert kept is not None
    assert [piece async for piece in room.files.read("acme", kept)] == [b"a cat"]
    running = await RunningResponses(room.redis, room.keyring).find("acme", "resp_2")
    assert running is not None
    assert running.content == b"running"


async def test_a_namespace_secret_is_replaced_and_all_is_encrypted_anew(
    link: GuardedRedis, raw: redis.Redis
) -> None:
    room, key = await filled(link, BEFORE)
    old = (await room.store.get_tenant("acme"), await room.groups.get("law"))
    new = (await room.store.rotate_secret("acme"), await room.groups.rotate_secret("law"))
    for before, after in zip(old, new, strict=True):
        assert before.namespace_key != after.namespace_key
        assert before.namespace_secret == after.former_secrets[0].secret
    await check_filled(room, key)
    held = everything(raw)
    left = await rotating(room, BEFORE).run()
    # Two versions of two prompts, record and two pieces of two adapters, record and piece of a
    # file, and what runs; answer and talk were encrypted anew when they were read.
    assert left == Left(rewritten=13)
    await check_filled(room, key)
    assert (await room.store.get_tenant("acme")).former_secrets == ()
    assert (await room.groups.get("law")).former_secrets == ()
    now = everything(raw)
    for kind in ("meta", "prompt:support", "running:resp_2"):
        assert held[f"pw:{{acme}}:{kind}".encode()] != now[f"pw:{{acme}}:{kind}".encode()]
    assert len(list(raw.scan_iter("pw:{acme}:text:*"))) == 2
    assert (await rotating(room, BEFORE).run()) == Left()


async def test_a_former_secret_stays_until_no_service_can_still_use_it(
    link: GuardedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "SETTLE_SECONDS", 60.0)
    room, key = await filled(link, BEFORE)
    await room.store.rotate_secret("acme")
    assert (await rotating(room, BEFORE).run()).former_secrets == ["acme"]
    assert len((await room.store.get_tenant("acme")).former_secrets) == 1
    monkeypatch.setattr(rotation, "SETTLE_SECONDS", -1.0)
    assert (await rotating(room, BEFORE).run()).former_secrets == []
    await check_filled(room, key)


async def test_no_tenant_has_more_and_more_former_secrets(link: GuardedRedis) -> None:
    room, key = await filled(link, BEFORE)
    for _ in range(MAX_FORMER_SECRETS):
        await room.store.rotate_secret("acme")
    with pytest.raises(StoreConflict, match="store rotate"):
        await room.store.rotate_secret("acme")
    await check_filled(room, key)
    await rotating(room, BEFORE).run()
    await room.store.rotate_secret("acme")
    await check_filled(room, key)


async def test_a_pepper_is_replaced_and_the_old_one_is_then_worth_nothing(
    link: GuardedRedis,
) -> None:
    room, key = await filled(link, BEFORE)
    unused, spare = await room.store.create_key("acme", "spare")
    after = Room(link, AFTER, cache_seconds=0)
    await after.store.check_pepper()
    await check_filled(after, key)
    left = await rotating(after, AFTER).run()
    assert left.api_keys[0] == f"acme/{unused.id}"
    assert (left.rewritten, len(left.api_keys), left.peppers) == (3, 2, 1)
    with pytest.raises(PepperMismatch):
        await Room(link, Peppers(NEW)).store.check_pepper()
    await check_filled(after, key)  # which hashes the key anew
    assert (await rotating(after, AFTER).run()).api_keys == [f"acme/{unused.id}"]
    await after.store.revoke_key("acme", unused.id)
    assert await rotating(after, AFTER).run() == Left()
    alone = Room(link, Peppers(NEW), cache_seconds=0)
    await alone.store.check_pepper()
    await check_filled(alone, key)
    assert await who(alone.store, spare) is None
    with pytest.raises(PepperMismatch):
        await room.store.check_pepper()
    assert await who(room.store, key) is None
    assert (
        await link.execute("EXISTS", *(redis_keys.api_key(one) for one in BEFORE.digests(key))) == 0
    )


async def test_processes_with_either_pepper_for_the_newest_do_not_take_turns_at_a_key(
    link: GuardedRedis, raw: redis.Redis
) -> None:
    _, key = await filled(link, BEFORE)
    first = Room(link, Peppers(OLD, NEW), cache_seconds=0)
    second = Room(link, AFTER, cache_seconds=0)
    for room in (first, second):
        await room.store.check_pepper()
    _, newer = await second.store.create_tenant("umbra")
    before = raw.get(redis_keys.keys("acme"))
    for _ in range(2):
        for room in (first, second):
            await check_filled(room, key)
            assert await who(room.store, newer) is not None
    assert raw.get(redis_keys.keys("acme")) == before
    await rotating(second, AFTER).run()
    await check_filled(second, key)
    hashed = raw.get(redis_keys.keys("acme"))
    assert hashed != before
    await check_filled(first, key)
    assert raw.get(redis_keys.keys("acme")) == hashed


async def test_a_key_that_ends_keeps_its_end_when_it_is_hashed_anew(
    link: GuardedRedis, raw: redis.Redis
) -> None:
    room, _ = await filled(link, BEFORE)
    _, key = await room.store.create_key("acme", "short", expires_at=time.time() + 60)
    after = Room(link, AFTER, cache_seconds=0)
    await after.store.check_pepper()
    await rotating(after, AFTER).run()
    assert await who(after.store, key) is not None
    assert 0 < raw.ttl(redis_keys.api_key(AFTER.digests(key)[0])) <= 61


async def test_a_rotation_that_is_cut_off_goes_on_when_it_is_run_again(
    link: GuardedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, key = await filled(link, BEFORE)
    after = Room(link, AFTER, cache_seconds=0)
    await after.store.rotate_secret("acme")
    for round_trips in range(200):
        with monkeypatch.context() as patch:
            left = cut_off(after, patch, round_trips)
            try:
                await rotating(after, AFTER).run()
                break
            except StoreUnavailable:
                assert left == [0]
        await check_filled(Room(link, AFTER, cache_seconds=0), key)
    else:
        pytest.fail("it has never come to its end")
    assert round_trips > 10
    assert await rotating(after, AFTER).run() == Left()
    await check_filled(Room(link, Peppers(NEW), cache_seconds=0), key)
    assert await who(room.store, key) is None


async def test_nothing_is_lost_that_is_written_while_secrets_are_replaced(
    link: GuardedRedis,
) -> None:
    _, key = await filled(link, BEFORE)
    after = Room(link, AFTER)
    await after.store.check_pepper()
    saved: list[str] = []

    async def traffic(worker: int) -> None:
        for number in range(12):
            name = f"r_{worker}_{number}"
            await after.responses.save("acme", name, name.encode(), 60)
            saved.append(name)
            await _conversations(after).edit("acme", "conv_1", lambda old: old + b".", 60)
            assert await who(after.store, key) is not None

    async def rotate() -> None:
        for number in range(4):
            await after.store.rotate_secret("acme")
            await rotating(after, AFTER).run()
            await after.prompts.put("acme", "support", f"text {number}")

    await asyncio.gather(*map(traffic, range(4)), rotate())
    assert await rotating(after, AFTER).run() == Left()
    alone = Room(link, Peppers(NEW), cache_seconds=0)
    assert len(saved) == 48
    for name in saved:
        assert await alone.responses.load("acme", name) == name.encode()
    talk = await _conversations(alone).load("acme", "conv_1")
    assert talk is not None
    assert talk[REVISION_BYTES:] == b"talk" + b"." * 48
    assert len(await alone.prompts.versions("acme", "support")) == 6


async def test_what_cannot_be_read_is_told_and_keeps_nothing_else_from_it(
    link: GuardedRedis, raw: redis.Redis
) -> None:
    room, key = await filled(link, BEFORE)
    lost = redis_keys.stored_object("acme", "response", "resp_9")
    raw.copy(redis_keys.stored_object("acme", "response", "resp_1"), lost)
    await room.store.rotate_secret("acme")
    left = await rotating(room, BEFORE).run()
    assert left.unreadable == [lost]
    await check_filled(room, key)
    assert (await room.store.get_tenant("acme")).former_secrets == ()


async def test_a_write_is_not_made_again_under_another_pepper(link: GuardedRedis) -> None:
    before, after = Idempotency(link, Peppers(OLD, NEW)), Idempotency(link, AFTER)
    for first, second in ((before, after), (after, before)):
        attempt = await first.begin("ann", f"k{first is before}", b"write")
        assert isinstance(attempt, Attempt)
        again = functools.partial(second.begin, "ann", f"k{first is before}")
        with pytest.raises(StoreConflict, match="in progress"):
            await again(b"write")
        await first.finish(attempt, b"answer")
        assert await again(b"write") == b"answer"
        with pytest.raises(InvalidField):
            await again(b"another write")
    begun = await asyncio.gather(
        *(one.begin("bob", "k1", b"write") for one in (before, after) for _ in range(3)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Attempt) for one in begun) == 1


async def test_the_store_says_which_peppers_it_uses(link: GuardedRedis) -> None:
    old, new = fingerprint(OLD), fingerprint(NEW)
    used = functools.partial(pepper_record.in_use, link)
    await pepper_record.join(link, BEFORE)
    assert await used() == [old]
    await asyncio.gather(*(pepper_record.join(link, AFTER) for _ in range(5)))
    assert await used() == [old, new]
    await pepper_record.lead(link, AFTER)
    assert await used() == [new, old]
    await pepper_record.join(link, Peppers(OLD, NEW))
    assert await used() == [new, old]
    for change in (pepper_record.join, pepper_record.lead, pepper_record.settle):
        with pytest.raises(PepperMismatch):
            await change(link, Peppers(NEW))
    await pepper_record.settle(link, AFTER)
    assert await used() == [new]


def test_other_peppers_come_from_files_that_are_named_where_they_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "old"
    file.write_text(OLD.hex())
    peppers = load_peppers(tmp_path / "data", None, [file])
    assert peppers.all == [peppers.current, OLD]
    assert load_peppers(tmp_path / "data").all == [peppers.current]
    file.write_text("not a pepper")
    with pytest.raises(InvalidField, match="old") as refused:
        load_peppers(tmp_path / "data", None, [file])
    assert refused.value.field == "other_pepper_files"


async def test_a_list_of_keys_that_was_altered_is_told_and_left_as_it_is(
    link: GuardedRedis, raw: redis.Redis
) -> None:
    _, key = await filled(link, BEFORE)
    after = Room(link, AFTER, cache_seconds=0)
    await after.store.check_pepper()
    name = redis_keys.keys("acme")
    whole = raw.get(name)
    assert isinstance(whole, bytes)
    raw.set(name, whole[:-1] + bytes([whole[-1] ^ 1]))
    altered = raw.get(name)
    assert (await rotating(after, AFTER).run()).unreadable == [name]
    assert raw.get(name) == altered
    raw.set(name, whole)
    assert await who(after.store, key) is not None
