"""What is kept and changes, by several at once; and lists of it."""

from __future__ import annotations

import asyncio

import pytest

from tenants import redis_keys
from tenants.errors import TooLargeToStore
from tenants.stored.objects import REVISION_BYTES, EditedObjects
from tests.tenants.conftest import Room


@pytest.fixture
async def kept(room: Room) -> EditedObjects:
    await room.store.create_tenant("acme")
    return EditedObjects(room.redis, room.keyring, "completion", default_bytes=10_000)


async def content(kept: EditedObjects, object_id: str) -> bytes | None:
    blob = await kept.load("acme", object_id)
    return None if blob is None else blob[REVISION_BYTES:]


async def test_edits_at_once_are_all_made(kept: EditedObjects) -> None:
    await kept.put("acme", "one", b"", 60)

    async def add(word: bytes) -> None:
        await kept.edit("acme", "one", lambda old: old + word, 60)

    await asyncio.gather(*(add(b"%d " % number) for number in range(12)))
    assert sorted((await content(kept, "one") or b"").split()) == sorted(
        b"%d" % number for number in range(12)
    )


async def test_every_version_has_a_revision_of_its_own(kept: EditedObjects) -> None:
    revisions = {await kept.put("acme", "one", b"x", 60)}
    for _ in range(3):
        blob = await kept.edit("acme", "one", lambda old: old, 60)
        assert blob is not None
        revisions.add(blob[:REVISION_BYTES])
    assert len(revisions) == 4


async def test_what_is_gone_is_not_edited(kept: EditedObjects) -> None:
    assert await kept.edit("acme", "one", lambda old: old, 60) is None
    await kept.put("acme", "one", b"x", 60)

    def late(old: bytes) -> bytes:
        deleting.append(asyncio.ensure_future(kept.delete("acme", "one")))
        return old + b"y"

    deleting: list[asyncio.Future[bool]] = []
    real = kept._blobs.save

    async def save_after_delete(*arguments: object, **named: object) -> bool:
        await deleting[-1]
        return await real(*arguments, **named)  # type: ignore[arg-type]

    kept._blobs.save = save_after_delete  # type: ignore[method-assign]
    assert await kept.edit("acme", "one", late, 60) is None
    assert await content(kept, "one") is None


async def test_what_has_grown_too_large_stays_as_it_was(kept: EditedObjects) -> None:
    await kept.put("acme", "one", b"x", 60)
    with pytest.raises(TooLargeToStore):
        await kept.edit("acme", "one", lambda _: b"x" * 10_000, 60)
    assert await content(kept, "one") == b"x"


async def test_lists_go_by_time_whatever_is_changed(kept: EditedObjects, room: Room) -> None:
    for number, name in enumerate(("c", "a", "b", "d")):
        await kept.put("acme", name, name.encode(), 60, listed_at=1000.5 + number)
    await kept.edit("acme", "a", lambda old: old, 60, listed_at=1001.5)
    await kept.delete("acme", "b")

    async def names(after: str | None, newest_first: bool, limit: int) -> list[str] | None:
        listed = await kept.listed("acme", after, newest_first=newest_first, limit=limit)
        return None if listed is None else [name for name, _ in listed]

    assert await names(None, False, 9) == ["c", "a", "d"]
    assert await names(None, True, 2) == ["d", "a"]
    assert await names("a", False, 9) == ["d"]
    assert await names("d", False, 9) == []
    assert await names("b", False, 9) is None
    assert await kept.listed("umbra", None, newest_first=True, limit=9) == []
    await kept.put("acme", "large", b"x" * 9000, 60)
    assert await names(None, False, 9) == []
    assert await room.redis.execute("EXISTS", redis_keys.listed("acme")) == 0
