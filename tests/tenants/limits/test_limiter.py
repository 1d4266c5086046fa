"""Requests and tokens that a tenant may take, over a real server."""

from __future__ import annotations

import pytest
import redis
from msgspec.structs import replace

from tenants.limits.limiter import Limiter, Quota
from tenants.records import TenantLimits
from tests.tenants.conftest import admit, everything, take
from tests.tenants.limits.conftest import MakeTenant, age, exceeded


async def test_requests_a_minute_are_a_bucket_that_refills(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(requests_per_minute=3)
    for number in range(3):
        admission = await take(limiter, tenant, f"r{number}", 10)
        assert admission.requests is not None
        assert (admission.requests.limit, admission.requests.remaining) == (3, 2 - number)
        assert admission.tokens is None
    error = await exceeded(take(limiter, tenant, "r3", 10))
    assert error.limit == "requests"
    assert error.retry_after_seconds is not None
    assert 10 < error.retry_after_seconds <= 20
    assert error.requests is not None
    assert error.requests.remaining == 0
    age(raw, error.retry_after_seconds)
    await take(limiter, tenant, "r4", 10)
    await exceeded(take(limiter, tenant, "r5", 10))
    age(raw, 60)
    for number in range(3):
        await take(limiter, tenant, f"s{number}", 10)
    await exceeded(take(limiter, tenant, "s3", 10))


@pytest.mark.parametrize("limit", [1, 3, 7, 60, 97, 1000])
async def test_a_full_bucket_holds_exactly_the_limit(
    limiter: Limiter, make: MakeTenant, limit: int
) -> None:
    tenant = await make(tokens_per_minute=limit)
    whole = await take(limiter, tenant, "all", limit)
    assert whole.tokens is not None
    assert whole.tokens.remaining == 0
    await limiter.settle(whole, 0)
    half = await take(limiter, tenant, "half", limit // 2)
    await take(limiter, tenant, "rest", limit - limit // 2)
    assert half.tokens == Quota(limit, limit - limit // 2, pytest.approx(30, abs=30))
    await exceeded(take(limiter, tenant, "more", (limit + 1) // 2))


async def test_what_was_not_used_is_given_back_once(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_minute=1000)
    admission = await take(limiter, tenant, "r1", 1000)
    await exceeded(take(limiter, tenant, "r2", 300))
    await limiter.settle(admission, 400)
    for _ in range(2):
        await limiter.settle(admission, 400)
        await limiter.settle(admission, 0)
    await exceeded(take(limiter, tenant, "r3", 700))
    await take(limiter, tenant, "r4", 600)


async def test_what_time_has_refilled_is_not_given_back_again(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_minute=6000)
    whole = await take(limiter, tenant, "r1", 6000)
    age(raw, 12)  # refills 1200
    for other in ("r2", "r3"):
        await limiter.settle(await take(limiter, tenant, other, 600), 600)
    await limiter.settle(whole, 0)
    # Nothing was used until now, when a bucket of 6000 could be full and no more.
    await exceeded(take(limiter, tenant, "r4", 4900))
    await take(limiter, tenant, "r5", 4800)


async def test_what_others_still_hold_is_not_given_back_for_what_time_has_refilled(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_minute=6000)
    first = await take(limiter, tenant, "r1", 6000)
    age(raw, 60)
    second = await take(limiter, tenant, "r2", 6000)
    await limiter.settle(first, 0)
    await exceeded(take(limiter, tenant, "r3", 100))
    await limiter.settle(second, 1000)
    await exceeded(take(limiter, tenant, "r3", 5100))
    await take(limiter, tenant, "r4", 5000)


async def test_answers_side_by_side_pay_what_they_used(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_minute=6000)
    running = [await take(limiter, tenant, f"r{number}", 600) for number in range(10)]
    age(raw, 10)
    for admission in running:
        await limiter.settle(admission, 100)
    await take(limiter, tenant, "more", 5000)


async def test_a_cancelled_request_costs_no_tokens_but_stays_a_request(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(tokens_per_minute=100, requests_per_minute=2)
    for number in range(2):
        await limiter.settle(await take(limiter, tenant, f"r{number}", 100), 0)
    error = await exceeded(take(limiter, tenant, "r2", 100))
    assert error.limit == "requests"
    assert error.tokens is not None
    assert error.tokens.remaining == 100


async def test_a_request_that_is_not_admitted_takes_nothing(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(requests_per_minute=1, tokens_per_minute=100, concurrent_streams=2)
    await take(limiter, tenant, "r1", 60)
    before = everything(raw)
    for _ in range(20):
        assert (await exceeded(admit(limiter, tenant, "r2"))).limit == "requests"
    assert everything(raw) == before


async def test_a_request_whose_tokens_are_refused_is_counted_and_runs_no_longer(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(
        requests_per_minute=4, tokens_per_minute=100, tokens_per_day=100, concurrent_streams=2
    )
    await take(limiter, tenant, "r1", 60)
    for left in (2, 1):
        error = await exceeded(take(limiter, tenant, "r2", 50))
        assert error.limit in ("tokens", "tokens_per_day")
        assert error.requests is not None
        assert error.tokens is not None
        assert (error.requests.remaining, error.tokens.remaining) == (left, 40)
    last = await take(limiter, tenant, "r3", 40)
    assert last.requests is not None
    assert last.requests.remaining == 0
    assert (await exceeded(admit(limiter, tenant, "r4"))).limit == "requests"


async def test_a_request_that_ends_before_its_tokens_are_known_is_counted_alone(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(tokens_per_minute=100, requests_per_minute=3, concurrent_streams=1)
    for number in range(2):
        await limiter.settle(await admit(limiter, tenant, f"r{number}"), 0)
    await take(limiter, tenant, "r2", 100)


async def test_who_is_refused_hears_of_the_limit_that_lasts_longest(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(requests_per_minute=1, concurrent_streams=1)
    first = await admit(limiter, tenant, "r1")
    assert (await exceeded(admit(limiter, tenant, "r2"))).limit == "requests"
    await limiter.settle(first, 0)
    tenant = replace(tenant, limits=TenantLimits(tokens_per_minute=600, tokens_per_day=1000))
    first = await take(limiter, tenant, "r3", 550)
    assert (await exceeded(take(limiter, tenant, "r4", 400))).limit == "tokens"
    error = await exceeded(take(limiter, tenant, "r4", 500))
    assert error.limit == "tokens_per_day"
    assert error.retry_after_seconds is not None
    assert 0 < error.retry_after_seconds <= 24 * 3600
    error = await exceeded(take(limiter, tenant, "r4", 601))
    assert (error.limit, error.retry_after_seconds) == ("tokens", None)
    await limiter.settle(first, 550)
    await take(limiter, tenant, "r4", 10)


@pytest.mark.parametrize("limit", ["tokens_per_minute", "tokens_per_day"])
async def test_what_no_wait_can_help_says_so(
    limiter: Limiter, make: MakeTenant, limit: str
) -> None:
    tenant = await make(**{limit: 100})
    error = await exceeded(take(limiter, tenant, "r1", 101))
    assert error.retry_after_seconds is None
    assert "101" in str(error)
    assert "never" in str(error)
    await take(limiter, tenant, "r2", 100)


async def test_a_days_budget_is_of_its_utc_day(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_day=100)
    yesterdays = await take(limiter, tenant, "r1", 100)
    assert (await exceeded(take(limiter, tenant, "r2", 1))).limit == "tokens_per_day"
    raw.hincrby("pw:{acme}:limits", "day", -1)  # all of it was yesterday
    yesterdays = replace(yesterdays, day=(yesterdays.day or 0) - 1)
    todays = await take(limiter, tenant, "r3", 60)
    await limiter.settle(yesterdays, 0)  # gives nothing back to today
    await exceeded(take(limiter, tenant, "r4", 41))
    await limiter.settle(todays, 10)
    await take(limiter, tenant, "r5", 90)


async def test_idle_buckets_leave_the_store(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_minute=100, concurrent_streams=1, sockets=1)
    await take(limiter, tenant, "r1", 100)
    await limiter.open_socket(tenant, "s1")
    for name in ("limits", "streams", "sockets"):
        assert raw.pttl(f"pw:{{acme}}:{name}") > 0
