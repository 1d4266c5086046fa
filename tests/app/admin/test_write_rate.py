"""An operator may make so many writes in a minute; reads, and others, are not held up by it."""

from __future__ import annotations

import httpx
import pytest

from app.admin.door import WriteRate
from app.admin.problems import Problem
from app.transport.bounds import Bounds
from tests.tenants.clock import Clock


@pytest.fixture
def limits() -> Bounds:
    return Bounds(admin_writes_per_minute=2)


async def test_more_writes_are_told_when_to_come_again(admin: httpx.AsyncClient) -> None:
    writes = [await admin.post("/tenants", json={"id": f"new-{number}"}) for number in range(3)]
    assert [one.status_code for one in writes] == [201, 201, 429]
    assert writes[2].json()["code"] == "too_many_writes"
    assert 1 <= int(writes[2].headers["retry-after"]) <= 30
    assert (await admin.get("/tenants/new-1")).status_code == 200
    assert (await admin.get("/tenants/new-2")).status_code == 404


def test_a_minutes_writes_come_back_one_by_one_for_each_operator() -> None:
    clock = Clock(0.0)
    rate = WriteRate(60, clock)
    for _ in range(60):
        rate.count("acme")
    for _ in range(3):
        with pytest.raises(Problem, match="60 writes"):
            rate.count("acme")
        rate.count("umbra")
        clock.now += 1
        rate.count("acme")


def test_without_a_limit_nobody_is_counted() -> None:
    rate = WriteRate(None)
    for _ in range(10_000):
        rate.count("acme")
