"""What a process had counted when it was killed is counted by whoever starts after it, once."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from datetime import date
from pathlib import Path

import msgspec
import pytest

from tenants.errors import StoreUnavailable
from tenants.usage import journal as module
from tenants.usage.journal import FileJournal
from tenants.usage.meter import UsageMeter
from tests.tenants.conftest import OpenRoom, Room
from tests.tenants.server import Server


async def requests_of(room: Room, tenant: str = "acme") -> int:
    days = await UsageMeter(room.redis).read(tenant, date.min, date.max)
    return sum(day.requests for day in days)


async def booked_what_was_left(room: Room, folder: Path) -> list[bytes]:
    """What a new process finds of others, with one token for each request that ran."""
    mine = UsageMeter(room.redis, FileJournal(folder))
    bills = []
    for left in mine.left():
        for slot in left.read_journal():
            bills.append(slot.bill)
            with left.booking(slot):
                left.add("acme", requests=1, output_tokens=slot.output_tokens)
        await left.flush()
        left.close()
    mine.close()
    return bills


async def test_usage_that_the_store_did_not_take_survives_a_kill(
    server: Server, open_room: OpenRoom, tmp_path: Path
) -> None:
    room = await open_room(server.url)
    await room.store.create_tenant("acme")
    journal = FileJournal(tmp_path)
    meter = UsageMeter(room.redis, journal)
    server.kill()
    for _ in range(3):
        meter.add("acme", requests=1)
        await meter.flush()
    journal.close()  # as a kill does
    server.start()
    await booked_what_was_left(room, tmp_path)
    room = await open_room(server.url)
    await booked_what_was_left(room, tmp_path)
    assert await requests_of(room) == 3
    assert os.listdir(tmp_path) == []


async def test_a_batch_that_arrived_unheard_is_not_counted_again(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.store.create_tenant("acme")
    journal = FileJournal(tmp_path)
    meter = UsageMeter(room.redis, journal)
    real = room.redis.run_script_on_each

    async def lose_the_answer(*arguments: object) -> object:
        await real(*arguments)  # type: ignore[arg-type]
        raise StoreUnavailable("timeout")

    monkeypatch.setattr(room.redis, "run_script_on_each", lose_the_answer)
    meter.add("acme", requests=1)
    await meter.flush()
    meter.add("acme", requests=1)
    journal.close()
    monkeypatch.undo()
    await booked_what_was_left(room, tmp_path)
    assert await requests_of(room) == 2


async def test_a_living_process_keeps_its_journal(room: Room, tmp_path: Path) -> None:
    await room.store.create_tenant("acme")
    program = (
        "import sys, tests.tenants.usage.test_journal as t\n"
        "journal = t.FileJournal(t.Path(sys.argv[1]))\n"
        "journal.begin(b'bill').note_output(7)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
        "t.os.kill(t.os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert other.stdout is not None
    await other.stdout.readline()
    assert await booked_what_was_left(room, tmp_path) == []
    await other.communicate(b"")
    assert await booked_what_was_left(room, tmp_path) == [b"bill"]
    assert await booked_what_was_left(room, tmp_path) == []
    (day,) = await UsageMeter(room.redis).read("acme", date.min, date.max)
    assert (day.requests, day.output_tokens) == (1, 7)


async def test_half_a_record_is_none(room: Room, tmp_path: Path) -> None:
    await room.store.create_tenant("acme")
    journal = FileJournal(tmp_path)
    meter = UsageMeter(room.redis, journal)
    for _ in range(2):
        meter.add("acme", requests=1)
    journal.close()
    log = tmp_path / f"{journal.meter_id}.log"
    content = log.read_bytes()
    log.write_bytes(content[:-1])
    await booked_what_was_left(room, tmp_path)
    assert await requests_of(room) == 1


async def test_a_long_journal_is_cut_to_what_redis_does_not_have(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOG_BYTES", 2000)
    await room.store.create_tenant("acme")
    journal = FileJournal(tmp_path)
    meter = UsageMeter(room.redis, journal)
    log = tmp_path / f"{journal.meter_id}.log"
    slot = meter.begin(b"bill")
    for number in range(500):
        meter.add("acme", requests=1)
        if number % 50 == 0:
            await meter.flush()
        assert log.stat().st_size < 4000
    slot.note_output(1)
    journal.close()
    await booked_what_was_left(room, tmp_path)
    assert await requests_of(room) == 501


async def test_a_full_disk_leaves_usage_in_memory_and_then_all_of_it_in_the_journal(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await room.store.create_tenant("acme")
    journal = FileJournal(tmp_path)
    meter = UsageMeter(room.redis, journal)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        patched.setattr(os, "posix_fallocate", full)
        slot = meter.begin(b"bill")
        slot.note_output(1)
        with meter.booking(slot):
            meter.add("acme", requests=1)
    assert "in memory alone" in caplog.text
    meter.add("acme", requests=1)
    journal.close()
    await booked_what_was_left(room, tmp_path)
    assert await requests_of(room) == 2


async def test_what_is_no_journal_is_told_and_left_where_it_is(tmp_path: Path, room: Room) -> None:
    journal = FileJournal(tmp_path)
    journal._write(journal._log, module._framed(["of", "another", "version"]))  # type: ignore[arg-type]
    journal.close()
    mine = UsageMeter(room.redis, FileJournal(tmp_path))
    (left,) = mine.left()
    with pytest.raises(msgspec.DecodeError):
        left.read_journal()
    left.close()
    assert f"{journal.meter_id}.log" in os.listdir(tmp_path)


async def test_a_full_disk_at_the_next_start_loses_nothing_of_what_was_left(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.store.create_tenant("acme")
    journal = FileJournal(tmp_path)
    meter = UsageMeter(room.redis, journal)
    meter.add("acme", requests=1)
    meter.begin(b"bill").note_output(1)
    journal.close()
    mine = UsageMeter(room.redis, FileJournal(tmp_path))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        for left in mine.left():
            with pytest.raises(OSError, match="No space"):
                left.read_journal()
            left.close()
    mine.close()
    await booked_what_was_left(room, tmp_path)
    assert await requests_of(room) == 2
    assert os.listdir(tmp_path) == []


async def test_a_request_that_was_booked_is_not_booked_again_by_any_of_several_heirs(
    server: Server, open_room: OpenRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = await open_room(server.url)
    await room.store.create_tenant("acme")
    journal = FileJournal(tmp_path)
    meter = UsageMeter(room.redis, journal)
    booked, running = meter.begin(b"booked"), meter.begin(b"running")
    running.note_output(1)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "end", lambda _: None)  # killed between the two
        with meter.booking(booked):
            meter.add("acme", requests=1)
    journal.close()
    server.kill()
    assert await booked_what_was_left(room, tmp_path) == [b"running"]
    assert await booked_what_was_left(room, tmp_path) == []
    server.start()
    room = await open_room(server.url)
    assert await booked_what_was_left(room, tmp_path) == []
    assert await requests_of(room) == 2


async def test_a_request_that_was_not_booked_keeps_its_journal(room: Room, tmp_path: Path) -> None:
    await room.store.create_tenant("acme")
    meter = UsageMeter(room.redis, FileJournal(tmp_path))
    meter.begin(b"bill").note_output(1)
    meter.close()
    await booked_what_was_left(room, tmp_path)
    assert await requests_of(room) == 1


async def test_a_request_is_in_the_journal_again_once_the_disk_has_room(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.store.create_tenant("acme")
    meter = UsageMeter(room.redis, FileJournal(tmp_path))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with meter.booking(meter.begin(b"in memory")):
            pass
    meter.begin(b"bill").note_output(1)
    meter.close()
    assert await booked_what_was_left(room, tmp_path) == [b"bill"]


async def test_a_journal_that_cannot_be_opened_is_told_and_the_others_are_read(
    room: Room, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await room.store.create_tenant("acme")
    journal = FileJournal(tmp_path)
    journal.begin(b"bill").note_output(1)
    journal.close()
    (tmp_path / "0.slots").mkdir()  # as one of another user's cannot be opened
    assert await booked_what_was_left(room, tmp_path) == [b"bill"]
    assert "cannot be read" in caplog.text


async def test_late_usage_of_a_deleted_tenant_is_not_the_new_ones(room: Room) -> None:
    old, _ = await room.store.create_tenant("acme")
    meter = UsageMeter(room.redis)
    meter.add("acme", generation=repr(old.created_at), requests=1)
    await room.store.delete_tenant("acme")
    new, _ = await room.store.create_tenant("acme")
    meter.add("acme", generation=repr(new.created_at), requests=1)
    await meter.flush()
    assert await requests_of(room) == 1


async def test_a_tenant_of_an_earlier_version_is_whose_usage_comes_first(room: Room) -> None:
    tenant, _ = await room.store.create_tenant("acme")
    await room.redis.execute("DEL", "pw:{acme}:generation")  # as that left it
    meter = UsageMeter(room.redis)
    meter.add("acme", generation=repr(tenant.created_at), requests=1)
    await meter.flush()
    meter.add("acme", generation="1.5", requests=1)
    await meter.flush()
    assert await requests_of(room) == 1
    await room.store.delete_tenant("acme")
    assert [key async for keys in room.redis.scan("pw:{acme}:*", 100) for key in keys] == []
