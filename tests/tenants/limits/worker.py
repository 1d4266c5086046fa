"""One of several processes that hold a tenant to its limits; prints what it was allowed to use.

Arguments: Redis URL, tenant id, when it was made, tokens a minute, tokens of a request, and how
many requests first hold theirs, without using any: until standard input ends, as late as whoever
started this likes. Those end in the middle of as many others, which use what they take. It prints a
line once it holds something, and then the tokens used and the Unix seconds at which the others
began and ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time

from tenants.limits.limiter import Limiter, LimitExceeded
from tenants.records import Tenant, TenantLimits
from tenants.storage.connection import open_redis
from tests.tenants.conftest import take


async def work(url: str, tenant: Tenant, tokens: int, held: int) -> tuple[int, float, float]:
    """Tokens used by those that were admitted of the others, and from when to when."""
    redis = await open_redis(url, 10)
    limiter = Limiter(redis)

    async def use() -> int:
        try:
            admission = await take(limiter, tenant, secrets.token_hex(8), tokens)
        except LimitExceeded:
            return 0
        await limiter.settle(admission, tokens)
        return tokens

    holding = []
    for _ in range(held):
        with contextlib.suppress(LimitExceeded):
            holding.append(await take(limiter, tenant, secrets.token_hex(8), tokens))
    print("holding", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    began = time.time()
    used = sum(await asyncio.gather(*(use() for _ in range(held))))
    await asyncio.gather(*(limiter.settle(admission, 0) for admission in holding))
    used += sum(await asyncio.gather(*(use() for _ in range(held))))
    ended = time.time()
    await redis.close()
    return used, began, ended


def main() -> None:
    url, tenant_id, created_at = sys.argv[1:4]
    limit, tokens, held = map(int, sys.argv[4:])
    tenant = Tenant(
        id=tenant_id,
        name=tenant_id,
        namespace_secret=b"",
        created_at=float(created_at),
        limits=TenantLimits(tokens_per_minute=limit),
    )
    print(*asyncio.run(work(url, tenant, tokens, held)))


if __name__ == "__main__":
    main()
