"""One of several processes that hold a tenant to its limits; prints what it was allowed to use.

Arguments: Redis URL, tenant id, requests to try, tokens that each takes and then uses, and how many
tokens a minute there are. It starts when its standard input ends.
"""

from __future__ import annotations

import asyncio
import secrets
import sys

from tenants.connection import open_redis
from tenants.limits import Limiter, LimitExceeded
from tenants.records import Tenant, TenantLimits


async def work(url: str, tenant: Tenant, requests: int, taken: int, used: int) -> int:
    """Tokens used by those of so many requests at once that were admitted."""
    redis = await open_redis(url, 10)
    limiter = Limiter(redis)

    async def stream() -> int:
        try:
            admission = await limiter.admit(tenant, secrets.token_hex(8), taken)
        except LimitExceeded:
            return 0
        await asyncio.sleep(0.01)
        await limiter.settle(admission, used)
        return used

    total = sum(await asyncio.gather(*(stream() for _ in range(requests))))
    await redis.close()
    return total


def main() -> None:
    url, tenant_id = sys.argv[1:3]
    requests, taken, used, limit = map(int, sys.argv[3:])
    tenant = Tenant(
        id=tenant_id,
        name=tenant_id,
        namespace_secret=b"",
        created_at=0.0,
        limits=TenantLimits(tokens_per_minute=limit),
    )
    sys.stdin.read()
    print(asyncio.run(work(url, tenant, requests, taken, used)))


if __name__ == "__main__":
    main()
