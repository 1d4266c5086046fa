"""Whoever has a backup and not the pepper: line by line what docs/security.md says of them."""

from __future__ import annotations

import io
import random
from copy import copy
from pathlib import Path

import httpx
import msgspec
import pytest
import redis

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.backup import Record, Without, Writer, _pieces
from tenants.errors import BackupUnusable, PepperMismatch
from tests.app.conftest import PEPPER, World
from tests.app.trust.conftest import KNOWN, SAID, ask, status_of
from tests.tenants.conftest import everything


async def saved(world: World, path: Path) -> bytes:
    await world.stores.backup.save(path)
    return path.read_bytes()  # noqa: ASYNC240 - a test may wait


async def test_a_holder_of_a_backup_reads_what_a_reader_does(
    world: World, users: httpx.AsyncClient, tmp_path: Path
) -> None:
    assert (await ask(users, world.keys["umbra"])).status_code == 200
    held = await saved(world, tmp_path / "file")
    for hidden in (SAID.encode(), world.keys["umbra"].encode()):
        assert hidden not in held
    assert world.tenants["umbra"].namespace_secret not in held
    assert b"umbra" in held


async def test_a_holder_of_backups_makes_no_other_of_them(
    world: World, raw: redis.Redis, tmp_path: Path
) -> None:
    """Neither a bit nor a record is changed, and two are not put together."""
    one = await saved(world, tmp_path / "one")
    await world.stores.tenants.create_tenant("third")
    two = await saved(world, tmp_path / "two")
    before, bad, draw = everything(raw), tmp_path / "bad", random.Random(0)
    head, *records, end = list(_pieces(io.BytesIO(one)))
    *others, other_end = list(_pieces(io.BytesIO(two)))
    forged = [
        b"".join((head, *records[1:], end)),
        b"".join((head, *reversed(records), end)),
        b"".join((head, *records, records[0], end)),
        b"".join((head, *records, other_end)),
        b"".join((head, *others[1:], end)),
        b"".join((*others, end)),
        one + two,
        b"",
    ]
    forged += [one[: draw.randrange(len(one))] for _ in range(10)]
    for _ in range(40):
        at = draw.randrange(len(one))
        forged.append(one[:at] + bytes([one[at] ^ 1 << draw.randrange(8)]) + one[at + 1 :])
    for data in forged:
        bad.write_bytes(data)
        with pytest.raises((BackupUnusable, PepperMismatch)):
            await world.stores.backup.load(bad, replaces=True)
    assert everything(raw) == before


OTHERS = Peppers(KNOWN)


def by_hand(path: Path, peppers: Peppers, *records: Record, fingerprint: bytes = b"") -> Path:
    """A file that somebody writes who knows the format, and these peppers."""
    forger = copy(peppers)
    forger.fingerprints = [fingerprint or peppers.fingerprints[0]]
    with path.open("wb") as file:
        writer = Writer(file, forger)
        for record in records:
            writer.add(record)
        writer.end()
    return path


OURS = Record(redis_keys.PEPPER, "string", [[PEPPER.fingerprints[0]]], None)
THEIRS = Record(redis_keys.PEPPER, "string", [[OTHERS.fingerprints[0]]], None)
SESSION = Record("other-app:session", "string", [[b"x"]], None)


async def test_a_file_that_is_made_by_hand_is_refused(
    world: World, raw: redis.Redis, tmp_path: Path
) -> None:
    before, load = everything(raw), world.stores.backup.load
    path, true = tmp_path / "file", PEPPER.fingerprints[0]
    for records in ((OURS,), (THEIRS,), (SESSION,), (OURS, SESSION)):
        for fingerprint in (true, b""):  # what the store says in clear, or their own
            with pytest.raises((BackupUnusable, PepperMismatch)):
                await load(by_hand(path, OTHERS, *records, fingerprint=fingerprint), replaces=True)
    # Even under the pepper nothing is taken that no Partywall writes.
    strange = ["other-app:session", "pw:other", "pw:{acme}:other", "pw:{acme}", "PW:tenants", ""]
    for key in strange:
        record = Record(key, "string", [[b"x"]], None)
        with pytest.raises(BackupUnusable, match="none of Partywall's"):
            await load(by_hand(path, PEPPER, OURS, record), replaces=True)
    for wrong in (Record(redis_keys.meta("acme"), "list", [[b"x"]], None),):
        with pytest.raises(BackupUnusable, match="none of Partywall's"):
            await load(by_hand(path, PEPPER, OURS, wrong), replaces=True)
    with pytest.raises(BackupUnusable, match="which pepper"):
        await load(by_hand(path, PEPPER), replaces=True)
    with pytest.raises(PepperMismatch):
        await load(by_hand(path, PEPPER, THEIRS), replaces=True)
    assert everything(raw) == before


async def test_a_backup_brings_back_what_was_revoked_unless_told_otherwise(
    world: World, users: httpx.AsyncClient, tmp_path: Path
) -> None:
    stores, path = world.stores, tmp_path / "file"
    key, shown = await stores.tenants.create_key("acme", "spare")
    record, token = await stores.operator_tokens.create("ci")
    await stores.backup.save(path)
    await stores.tenants.revoke_key("acme", key.id)
    await stores.operator_tokens.revoke(record.id)
    await stores.tenants.delete_tenant("umbra")
    for without in (Without(), Without(keys=True), Without(tokens=True)):
        await stores.backup.load(path, replaces=True, without=without)
        for one in (shown, world.keys["umbra"]):
            assert await status_of(users, one) == (401 if without.keys else 200)
        assert (await stores.operator_tokens.find(token) is None) == without.tokens
        assert len(await stores.tenants.list_tenants()) == 2
    await stores.backup.load(path, replaces=True, without=Without(keys=True, tokens=True))
    assert await status_of(users, (await stores.tenants.create_key("umbra", "new"))[1]) == 200


async def test_a_file_of_an_earlier_version_is_refused_since_anybody_could_make_one(
    world: World, tmp_path: Path
) -> None:
    head = msgspec.msgpack.encode({"type": "Head", "format": "partywall-backup-1", "schema": 1})
    path = tmp_path / "file"
    path.write_bytes(len(head).to_bytes(4) + head)
    with pytest.raises(BackupUnusable, match="partywall store seal"):
        await world.stores.backup.load(path, replaces=True)
