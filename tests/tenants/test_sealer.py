"""Sealed records: opened where they lie, by who knows the secret, and by nobody else."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from tenants.at_rest import sealer
from tenants.at_rest.sealer import HEAD_BYTES, OVERHEAD_BYTES, Sealer, is_sealed
from tenants.errors import SealBroken, SealMissing, SealUnknown

SECRET, OTHER = b"s" * 32, b"o" * 32


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 1234])
async def test_what_is_sealed_at_once_or_by_turns_is_opened_either_way(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(sealer, "_STEP_BYTES", 100)
    one, content = Sealer("things", SECRET), secrets.token_bytes(size)
    for record in (one.seal(content, "a", "b"), await one.seal_large(content, "a", "b")):
        assert len(record) == size + OVERHEAD_BYTES
        assert is_sealed(record)
        assert one.open(record, "a", "b") == content
        assert await one.open_large(record, "a", "b") == content


async def test_others_have_their_turn_while_a_large_record_is_sealed_and_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealer, "_STEP_BYTES", 100)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    one = Sealer("things", SECRET)
    record = await one.seal_large(bytes(1000), "a")
    assert turns >= 8
    await one.open_large(record, "a")
    assert turns >= 16
    counting.cancel()


def test_no_two_records_are_alike() -> None:
    one = Sealer("things", SECRET)
    records = [one.seal(b"content", "a") for _ in range(100)]
    assert len({record[:HEAD_BYTES] for record in records}) == 100
    assert len({record[HEAD_BYTES:] for record in records}) == 100


def test_a_record_lies_in_its_own_place_only() -> None:
    one = Sealer("things", SECRET)
    record = one.seal(b"content", "ab", "c")
    for place in (("a", "bc"), ("abc",), ("ab",), ("ab", "c", ""), ("ab", "d"), ()):
        with pytest.raises(SealBroken):
            one.open(record, *place)


def test_a_bit_that_is_changed_is_noticed() -> None:
    one = Sealer("things", SECRET)
    record = one.seal(b"content", "a")
    for at in range(2, len(record)):
        changed = bytes([*record[:at], record[at] ^ 1, *record[at + 1 :]])
        with pytest.raises((SealBroken, SealUnknown)):
            one.open(changed, "a")
    with pytest.raises(SealBroken):
        one.open(record[:-1], "a")


def test_who_knows_both_secrets_opens_what_either_has_sealed() -> None:
    before, after = Sealer("things", OTHER), Sealer("things", SECRET, OTHER)
    old, new = before.seal(b"old", "a"), after.seal(b"new", "a")
    assert (after.open(old, "a"), after.open(new, "a")) == (b"old", b"new")
    assert (after.is_newest(old), after.is_newest(new)) == (False, True)
    for opener in (before, Sealer("other things", SECRET), Sealer("things", b"x" * 32)):
        with pytest.raises(SealUnknown, match="not known"):
            opener.open(new, "a")


@pytest.mark.parametrize("record", [b"", b"{}", b"\x83\xa2id", b"\xc1", b"\xc1\x01" + bytes(20)])
def test_what_was_never_sealed_is_refused_with_what_to_do(record: bytes) -> None:
    assert not is_sealed(record)
    with pytest.raises(SealMissing, match=r"^a is not sealed.*partywall store seal"):
        Sealer("things", SECRET).open(record, "a")
