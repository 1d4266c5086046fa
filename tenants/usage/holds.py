"""Reservations of a budget whose leases ended unbooked: their process is gone, or was cut off.

What they have cost is not known here, and nobody may spend it again: each is booked as what it had
reserved, by whoever finds it. Where its true cost comes after all, from the journal of the process
that died (see `tenants.metering`), it takes the place of that.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from tenants import redis_keys
from tenants.storage.connection import GuardedRedis, Script

_PRESUMED_SECONDS: Final = 60 * 86_400

# `book_expired(spending, usage, presumed, now, day)`, `now` in milliseconds; and `release(spending,
# usage, presumed, hold)`, with what it has cost booked beside. A reservation is `id:billionths`.
HOLDS = f"""
local function book_expired(spending, usage, presumed, now, day)
  local over = redis.call('ZRANGEBYSCORE', spending, '-inf', string.format('%.0f', now))
  for _, hold in ipairs(over) do
    redis.call('ZREM', spending, hold)
    local cost = string.match(hold, ':(%d+)$')
    if cost then
      redis.call('HINCRBY', usage, day .. ':cost_nanos', cost)
      redis.call('HSET', presumed, hold, day)
    end
  end
  if #over > 0 then redis.call('EXPIRE', presumed, {_PRESUMED_SECONDS}) end
end
local function release(spending, usage, presumed, hold)
  if redis.call('ZREM', spending, hold) == 1 then return end
  local day = redis.call('HGET', presumed, hold)
  if not day then return end
  redis.call('HINCRBY', usage, day .. ':cost_nanos', '-' .. string.match(hold, ':(%d+)$'))
  redis.call('HDEL', presumed, hold)
end
"""

# KEYS: spending, usage, presumed. ARGV: the day.
_BOOK = Script(
    HOLDS
    + """
local time = redis.call('TIME')
book_expired(KEYS[1], KEYS[2], KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1])
"""
)


async def book_expired(redis: GuardedRedis, tenant_id: str) -> None:
    """Have a tenant's usage say what is presumed. Raises `StoreUnavailable`."""
    keys = [
        redis_keys.spending(tenant_id),
        redis_keys.usage(tenant_id),
        redis_keys.presumed(tenant_id),
    ]
    await redis.run_script(_BOOK, keys, [datetime.now(UTC).date().isoformat()])
