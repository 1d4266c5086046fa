"""Leases at several replicas and doors are booked once."""

from __future__ import annotations

from msgspec import structs

from app.cluster.door.ledger import LeaseLedger
from engine.api import TenantStats

IDLE = TenantStats(
    running=0, waiting=0, blocks_held=0, blocks_shared=0, blocks_cached=0, blocks_pinned=0, served=0
)


def said(since: float, **seconds: float) -> dict[str, TenantStats]:
    return {
        owner: structs.replace(IDLE, lease_block_seconds=one, leases_since=since)
        for owner, one in seconds.items()
    }


def booked(ledger: LeaseLedger, owner: str) -> float:
    return ledger.booked(said(0, **{owner: 99.0}))[owner].lease_block_seconds


def test_what_grows_at_any_replica_is_booked_and_nothing_twice() -> None:
    ledger = LeaseLedger()
    ledger.observe(0, {}, books=True)
    ledger.observe(1, said(1, a=50), books=True)  # which others have booked
    assert booked(ledger, "a") == 0
    ledger.observe(0, said(1, a=10), books=True)
    ledger.observe(1, said(1, a=70), books=True)
    assert booked(ledger, "a") == 30
    ledger.observe(1, said(1, a=69.9), books=True)
    assert booked(ledger, "a") == 30
    ledger.observe(1, said(2, a=5), books=True)  # a new engine
    assert booked(ledger, "a") == 35


def test_what_another_door_books_is_not_booked_here() -> None:
    first, second = LeaseLedger(), LeaseLedger()
    for seconds in (0.0, 10.0, 20.0):
        first.observe(0, said(1, a=seconds), books=True)
        second.observe(0, said(1, a=seconds), books=False)
    second.observe(0, said(1, a=32), books=True)  # the first one is gone
    assert booked(first, "a") + booked(second, "a") == 32


def test_a_lost_replica_takes_nothing_back_and_brings_nothing_twice() -> None:
    ledger = LeaseLedger()
    for replica in (0, 1):
        ledger.observe(replica, {}, books=True)
        ledger.observe(replica, said(1, a=10), books=True)
    ledger.forget(1)
    assert booked(ledger, "a") == 20
    ledger.observe(1, said(1, a=18), books=True)
    assert booked(ledger, "a") == 20


def test_an_owner_that_is_forgotten_everywhere_begins_anew() -> None:
    ledger = LeaseLedger()
    ledger.observe(0, {}, books=True)
    ledger.observe(0, said(1, a=10), books=True)
    before = ledger.booked(said(1, a=0))["a"]
    ledger.observe(0, {}, books=True)
    ledger.observe(0, said(2, a=4), books=True)
    after = ledger.booked(said(2, a=0))["a"]
    assert after.leases_since != before.leases_since
    assert (before.lease_block_seconds, after.lease_block_seconds) == (10, 4)
