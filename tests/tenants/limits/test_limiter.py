"""What tenants may take, over a real server, several limiters and several processes."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace

from tenants.limits.limiter import Admission, Limiter, LimitExceeded, Quota
from tenants.records import UNLIMITED, Tenant, TenantLimits
from tests.tenants.conftest import OpenRoom, Room, everything, take

ROOT = Path(__file__).parents[3]
MakeTenant = Callable[..., Awaitable[Tenant]]


@pytest.fixture
def limiter(room: Room) -> Limiter:
    return Limiter(room.redis)


@pytest.fixture
def make(room: Room) -> MakeTenant:
    """Makes a tenant with the given limits."""

    async def made(tenant_id: str = "acme", **limits: int) -> Tenant:
        tenant, _ = await room.store.create_tenant(
            tenant_id, edit=lambda new: replace(new, limits=TenantLimits(**limits))
        )
        return tenant

    return made


async def exceeded(refused: Awaitable[object]) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        await refused
    return caught.value


def age(raw: redis.Redis, seconds: float) -> None:
    """Let so much time have passed for acme's buckets and leases."""
    for field in ("requests", "tokens", "used"):
        if raw.hexists("pw:{acme}:limits", field):
            raw.hincrby("pw:{acme}:limits", field, -int(seconds * 1e6))
    for name in ("streams", "sockets"):
        for member in raw.zrange(f"pw:{{acme}}:{name}", 0, -1):
            raw.zincrby(f"pw:{{acme}}:{name}", -int(seconds * 1e6), member)


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
        assert (await exceeded(limiter.admit(tenant, "r2"))).limit == "requests"
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
    assert (await exceeded(limiter.admit(tenant, "r4"))).limit == "requests"


async def test_a_request_that_ends_before_its_tokens_are_known_is_counted_alone(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(tokens_per_minute=100, requests_per_minute=3, concurrent_streams=1)
    for number in range(2):
        await limiter.settle(await limiter.admit(tenant, f"r{number}"), 0)
    await take(limiter, tenant, "r2", 100)


async def test_who_is_refused_hears_of_the_limit_that_lasts_longest(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(requests_per_minute=1, concurrent_streams=1)
    first = await limiter.admit(tenant, "r1")
    assert (await exceeded(limiter.admit(tenant, "r2"))).limit == "requests"
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


async def test_streams_count_while_they_run(limiter: Limiter, make: MakeTenant) -> None:
    tenant = await make(concurrent_streams=2)
    first = await take(limiter, tenant, "r1", 10)
    await take(limiter, tenant, "r2", 10)
    error = await exceeded(take(limiter, tenant, "r3", 10))
    assert error.limit == "streams"
    await limiter.settle(first, 10)
    await take(limiter, tenant, "r3", 10)


async def test_a_lease_lasts_as_long_as_it_is_renewed(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(concurrent_streams=1, sockets=1)
    running = await take(limiter, tenant, "r1", 10)
    await limiter.open_socket(tenant, "s1")
    for _ in range(3):
        age(raw, 20)
        await limiter.renew([running])
    await exceeded(take(limiter, tenant, "r2", 10))
    await exceeded(limiter.open_socket(tenant, "s2"))
    age(raw, 31)  # the replica has died
    await take(limiter, tenant, "r2", 10)
    await limiter.open_socket(tenant, "s2")


async def test_an_expired_lease_can_still_be_settled(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_day=100, concurrent_streams=1)
    late = await take(limiter, tenant, "r1", 100)
    age(raw, 31)
    await limiter.settle(late, 40)
    await take(limiter, tenant, "r2", 60)


async def test_a_settled_request_is_not_brought_back_by_a_late_heartbeat(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(concurrent_streams=1)
    admission = await take(limiter, tenant, "r1", 10)
    await limiter.settle(admission, 10)
    await limiter.renew([admission])
    await take(limiter, tenant, "r2", 10)


async def test_sockets_count_while_they_are_open(
    limiter: Limiter, make: MakeTenant, room: Room
) -> None:
    tenant = await make(sockets=2)
    other = Limiter(room.redis)
    await limiter.open_socket(tenant, "s1")
    await other.open_socket(tenant, "s2")
    error = await exceeded(limiter.open_socket(tenant, "s3"))
    assert (error.limit, error.retry_after_seconds) == ("sockets", 1)
    await limiter.close_socket(tenant, "s3")
    await exceeded(other.open_socket(tenant, "s3"))
    await other.close_socket(tenant, "s2")
    await limiter.open_socket(tenant, "s3")


async def test_a_tenant_that_may_have_no_socket_gets_none(
    limiter: Limiter, make: MakeTenant
) -> None:
    await exceeded(limiter.open_socket(await make(sockets=0), "s1"))


async def test_a_tenant_without_limits_costs_no_round_trip(
    limiter: Limiter, room: Room, make: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await make(context_tokens=10, blocks=5)
    monkeypatch.setattr(room.redis, "execute", None)
    admission = await take(limiter, tenant, "r1", 10**9)
    assert (admission.requests, admission.tokens) == (None, None)
    await limiter.settle(admission, 5)
    await limiter.open_socket(tenant, "s1")
    await limiter.close_socket(tenant, "s1")


async def test_one_tenants_use_is_not_anothers(limiter: Limiter, make: MakeTenant) -> None:
    acme = await make("acme", tokens_per_minute=100, concurrent_streams=1)
    umbra = await make("umbra", tokens_per_minute=100, concurrent_streams=1)
    await take(limiter, acme, "r1", 100)
    await exceeded(take(limiter, acme, "r2", 100))
    await take(limiter, umbra, "r2", 100)


async def test_a_deleted_tenant_leaves_nothing_of_its_limits(
    limiter: Limiter, make: MakeTenant, room: Room, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_minute=100, concurrent_streams=1, sockets=1)
    admission = await take(limiter, tenant, "r1", 100)
    await limiter.open_socket(tenant, "s1")
    await room.store.delete_tenant("acme")
    await limiter.settle(admission, 5)
    await limiter.settle(replace(admission, request_id="r0", day=None), 5)
    await take(limiter, tenant, "r2", 100)
    await limiter.open_socket(tenant, "s2")
    assert not [key for key in everything(raw) if b"{acme}" in key]


async def test_a_raised_limit_counts_from_the_next_request(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(tokens_per_minute=100)
    await take(limiter, tenant, "r1", 100)
    raised = replace(tenant, limits=TenantLimits(tokens_per_minute=100, tokens_per_day=150))
    await exceeded(take(limiter, raised, "r2", 51))
    await take(limiter, replace(tenant, limits=TenantLimits()), "r3", 10**6)


async def test_32_streams_through_two_limiters_never_pass_a_bucket(
    make: MakeTenant, redis_url: str, open_room: OpenRoom
) -> None:
    tenant = await make(tokens_per_minute=2000, concurrent_streams=7)
    limiters = [Limiter((await open_room(redis_url)).redis) for _ in range(2)]
    loop = asyncio.get_running_loop()
    used, began = 0, loop.time()
    at_once = []
    for turn in range(10):
        outcomes = await asyncio.gather(
            *(take(limiters[n % 2], tenant, f"{turn}-{n}", 100 + n) for n in range(32)),
            return_exceptions=True,
        )
        admitted = [one for one in outcomes if isinstance(one, Admission)]
        assert all(isinstance(one, Admission | LimitExceeded) for one in outcomes)
        at_once.append(len(admitted))
        used += sum(one.taken_tokens // 2 for one in admitted)
        await asyncio.gather(*(limiters[0].settle(one, one.taken_tokens // 2) for one in admitted))
    assert at_once[0] == max(at_once) == 7
    # All of the bucket but for less than a request would take, and no more than it.
    assert 2000 - 132 <= used <= 2000 + 2000 * (loop.time() - began) / 60


async def test_two_processes_never_pass_a_bucket_though_reservations_outlive_their_refill(
    make: MakeTenant, redis_url: str
) -> None:
    limit, tokens, held = 60_000, 500, 120
    await make(tokens_per_minute=limit)
    command = [sys.executable, "-m", "tests.tenants.limits.worker", redis_url, "acme"]
    workers = [
        await asyncio.create_subprocess_exec(
            *(*command, str(limit), str(tokens), str(held)), cwd=ROOT, stdin=PIPE, stdout=PIPE
        )
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"holding\n"
    await asyncio.sleep(2)  # refills 2000 tokens
    outputs = await asyncio.gather(*(worker.communicate(b"") for worker in workers))
    assert [worker.returncode for worker in workers] == [0, 0]
    used, began, ended = zip(*(map(float, output.split()) for output, _ in outputs), strict=True)
    elapsed = max(ended) - min(began)
    # Nothing was used before: a full bucket, and what the others' own time has refilled.
    assert limit - 2 * tokens <= sum(used) <= limit + limit * elapsed / 60


async def test_idle_buckets_leave_the_store(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_minute=100, concurrent_streams=1, sockets=1)
    await take(limiter, tenant, "r1", 100)
    await limiter.open_socket(tenant, "s1")
    for name in ("limits", "streams", "sockets"):
        assert raw.pttl(f"pw:{{acme}}:{name}") > 0


DEFAULTS = TenantLimits(requests_per_minute=3, concurrent_streams=2, sockets=1)


async def test_a_tenant_without_limits_has_the_services_defaults_and_costs_no_round_trip(
    room: Room, make: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await make(context_tokens=10)
    limiter = Limiter(room.redis, defaults=DEFAULTS)
    monkeypatch.setattr(room.redis, "execute", None)
    first = await take(limiter, tenant, "r1", 10**9)
    assert first.requests is not None
    assert (first.requests.limit, first.requests.remaining) == (3, 2)
    await take(limiter, tenant, "r2", 10)
    error = await exceeded(limiter.admit(tenant, "r3"))
    assert (error.limit, error.retry_after_seconds) == ("streams", 1)
    await limiter.settle(first, 5)
    await take(limiter, tenant, "r3", 10)
    error = await exceeded(limiter.admit(tenant, "r4"))
    assert error.limit == "requests"
    assert error.retry_after_seconds is not None
    await limiter.open_socket(tenant, "s1")
    assert (await exceeded(limiter.open_socket(tenant, "s2"))).limit == "sockets"
    await limiter.close_socket(tenant, "s1")
    await limiter.open_socket(tenant, "s2")


async def test_a_tenants_own_limits_go_before_the_defaults(room: Room, make: MakeTenant) -> None:
    limiter = Limiter(room.redis, defaults=DEFAULTS)
    free = await make(
        "free",
        requests_per_minute=UNLIMITED,
        concurrent_streams=UNLIMITED,
        sockets=UNLIMITED,
    )
    wide = await make("wide", requests_per_minute=5, sockets=2)
    for number in range(10):
        assert (await limiter.admit(free, f"r{number}")).requests is None
        await limiter.open_socket(free, f"s{number}")
    running = [await limiter.admit(wide, f"w{number}") for number in range(2)]
    assert (await exceeded(limiter.admit(wide, "w2"))).limit == "streams"
    await limiter.settle(running[0], 0)
    assert (await limiter.admit(wide, "w2")).requests == Quota(5, 2, pytest.approx(36, abs=2))
    for number in range(2):
        await limiter.open_socket(wide, f"s{number}")
    await exceeded(limiter.open_socket(wide, "s2"))
