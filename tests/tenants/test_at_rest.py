"""What lies in Redis: nothing that can be read, moved or guessed at without the pepper."""

from __future__ import annotations

from hashlib import sha256

import pytest
import redis

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.errors import PepperMismatch
from tenants.stored.objects import EditedObjects, SuspendedResponses
from tenants.stored.running import RunningResponses
from tests.tenants.conftest import OpenRoom, Room, everything

TEXT = "You keep the secret of the blue lagoon."


def dump(raw: redis.Redis) -> bytes:
    """All that is in Redis, names of keys included."""
    return b"\0".join(part for pair in everything(raw).items() for part in pair)


async def test_no_secret_and_no_text_can_be_read(
    room: Room, raw: redis.Redis, peppers: Peppers
) -> None:
    tenant, api_key = await room.store.create_tenant("acme")
    group = await room.groups.create("law")
    await room.store.rotate_secret("acme")
    await room.groups.rotate_secret("law")
    for owner in ("acme", "@law"):
        await room.prompts.put(owner, "support", TEXT)
    await room.responses.save("acme", "resp_1", TEXT.encode(), 60)
    await EditedObjects(room.redis, room.keyring, "conversation").put(
        "acme", "conv_1", TEXT.encode(), 60
    )
    await SuspendedResponses(room.redis, room.keyring).save("acme", "resp_2", TEXT.encode(), 60)
    running = RunningResponses(room.redis, room.keyring)
    running.note_begin("acme", "resp_3", TEXT.encode())
    assert await running._write()
    held = dump(raw)
    for name in (b"resp_1", b"conv_1", b"resp_2", b"resp_3", b"support"):
        assert name in held
    now = await room.store.get_tenant("acme")
    secrets = [tenant.namespace_secret, now.namespace_secret, now.namespace_key]
    secrets += [group.namespace_secret, (await room.groups.get("law")).namespace_secret]
    digest = sha256(TEXT.encode())
    texts = [b"lagoon", digest.digest(), digest.hexdigest().encode()]
    for hidden in (*secrets, *texts, peppers.current, api_key.encode()):
        assert hidden not in held


async def test_records_that_are_swapped_are_refused(
    room: Room, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for tenant in ("acme", "umbra"):
        await room.store.create_tenant(tenant)
        await room.responses.save(tenant, "resp_1", b"one", 60)
    await room.responses.save("acme", "resp_2", b"two", 60)
    mine = redis_keys.stored_object("acme", "response", "resp_1")
    for other in (
        redis_keys.stored_object("acme", "response", "resp_2"),
        redis_keys.stored_object("umbra", "response", "resp_1"),
    ):
        raw.copy(other, mine, replace=True)
        assert await room.responses.load("acme", "resp_1") is None
    await room.responses.save("acme", "resp_1", b"one", 60)
    raw.copy(mine, redis_keys.stored_object("acme", "suspended", "resp_1"))
    assert await SuspendedResponses(room.redis, room.keyring).take("acme", "resp_1") is None
    conversations = EditedObjects(room.redis, room.keyring, "conversation")
    for name in ("conv_1", "conv_2"):
        await conversations.put("acme", name, name.encode(), 60)
    one, two = (redis_keys.stored_object("acme", "conversation", f"conv_{n}") for n in "12")
    raw.copy(one, two, replace=True)
    assert await conversations.load("acme", "conv_2") is None
    assert await conversations.edit("acme", "conv_2", lambda old: old, 60) is None
    for loading, name, content in (
        (conversations, "conv_1", b"conv_1"),
        (room.responses, "resp_1", b"one"),
        (room.responses, "resp_2", b"two"),
    ):
        assert (await loading.load("acme", name) or b"").endswith(content)
    assert "altered" in caplog.text


async def test_a_version_of_a_prompt_cannot_take_anothers_place(
    open_room: OpenRoom, redis_url: str, raw: redis.Redis
) -> None:
    room = await open_room(redis_url, cache_seconds=0)
    await room.store.create_tenant("acme")
    await room.prompts.put("acme", "support", "one")
    await room.prompts.put("acme", "support", "two")
    place = redis_keys.prompt("acme", "support")
    first = raw.hget(place, "1")
    assert isinstance(first, bytes)
    raw.hset(place, "2", first)
    assert await room.prompts.get("acme", "support") is None
    found = await room.prompts.get("acme", "support", 1)
    assert found is not None
    assert found.text == "one"


async def test_a_process_reads_what_is_under_a_secret_that_it_has_not_heard_of(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    await room.store.create_tenant("acme")
    stale = await open_room(redis_url, cache_seconds=3600)
    await stale.responses.save("acme", "resp_1", b"before", 60)
    await room.store.rotate_secret("acme")
    await room.responses.save("acme", "resp_2", b"after", 60)
    assert await stale.responses.load("acme", "resp_2") == b"after"
    assert await room.responses.load("acme", "resp_1") == b"before"


async def test_a_store_says_which_setting_has_the_wrong_pepper(
    room: Room, raw: redis.Redis
) -> None:
    _, key = await room.store.create_tenant("acme")
    stranger = Room(room.redis, Peppers(b"x" * 32))
    with pytest.raises(PepperMismatch, match=r"^pepper_file: .*other_pepper_files"):
        await stranger.store.check_pepper()
    with pytest.raises(PepperMismatch, match="'acme'"):
        await stranger.store.get_tenant("acme")
    assert await stranger.store.authenticate(key) is None
