"""Several limiters, in one process and in two, never let a tenant pass what it may take."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from tenants.limits.limiter import Admission, Limiter, LimitExceeded
from tests.tenants.conftest import OpenRoom, take
from tests.tenants.limits.conftest import MakeTenant

ROOT = Path(__file__).parents[3]


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
    made = repr((await make(tokens_per_minute=limit)).created_at)
    command = [sys.executable, "-m", "tests.tenants.limits.worker", redis_url, "acme", made]
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
