"""What tenants may take in a minute, in a day and at once, over all replicas.

Requests and tokens a minute are buckets after the generic cell rate algorithm (GCRA, ITU-T I.371):
all that is kept of one is when it will be full again. What a request may use at most is taken on
admission, and what it did not use is given back at its end. A request that runs holds a lease, so
that the requests of a replica that died do not count for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from tenants import changes, keyspace
from tenants.connection import GuardedRedis, Script
from tenants.errors import StoreUnavailable
from tenants.local_limits import STREAM_RETRY, LocalLimits
from tenants.quota import DAY, MINUTE, LimitExceeded, Quota, Verdict
from tenants.records import Tenant, TenantLimits

__all__ = ["Admission", "LimitExceeded", "Limiter", "Quota"]

_log = logging.getLogger(__name__)
LEASE_SECONDS = 30.0
"""How long a stream or a socket counts without being renewed."""

_LATE_SECONDS = 600.0  # after its lease, a request can still be settled for so long

_CONSTANTS = f"""
local MINUTE, DAY, LATE = {MINUTE}, {DAY}, {int(_LATE_SECONDS * 1e6)}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local today = math.floor(now / DAY)
local function whole(number) return string.format('%.0f', number) end
"""

# KEYS: meta, limits, streams. ARGV: request id, tokens, length of a lease, and the limits (empty is
# none): requests and tokens a minute, tokens a day, streams. Gives the fields of a `Verdict`.
_ADMIT = Script(
    _CONSTANTS
    + f"""
local id, tokens, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HMGET', KEYS[2], 'requests', 'tokens', 'day', 'day_tokens')
local longest, limited = 0, ''
local function need(name, wait)
  if longest >= 0 and (wait < 0 or wait > longest) then longest, limited = wait, name end
end
local function bucket(name, full_at, limit, amount)
  full_at = math.max(tonumber(full_at or 0), now)
  if not limit then return now, now end
  local filled_at = full_at + math.floor(amount * MINUTE / limit)
  need(name, amount > limit and -1 or math.max(0, filled_at - MINUTE - now))
  return full_at, filled_at
end
local requests, next_requests = bucket('requests', state[1], tonumber(ARGV[4]), 1)
local budget, next_budget = bucket('tokens', state[2], tonumber(ARGV[5]), tokens)
local day_tokens = tonumber(state[3]) == today and tonumber(state[4]) or 0
local day_limit, stream_limit = tonumber(ARGV[6]), tonumber(ARGV[7])
if day_limit and day_tokens + tokens > day_limit then
  need('tokens_per_day', tokens > day_limit and -1 or DAY - now % DAY)
end
if stream_limit and redis.call('ZCOUNT', KEYS[3], whole(now), '+inf') >= stream_limit then
  need('streams', {STREAM_RETRY})
end
if limited ~= '' then return {{limited, longest, requests - now, budget - now, today}} end
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HSET', KEYS[2], 'requests', whole(next_requests), 'tokens', whole(next_budget),
    'day', today, 'day_tokens', whole(day_tokens + tokens))
  redis.call('PEXPIRE', KEYS[2], 2 * DAY / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', whole(now - LATE))
  redis.call('ZADD', KEYS[3], whole(now + lease), id)
  redis.call('PEXPIRE', KEYS[3], DAY / 1000)
end
return {{'', 0, next_requests - now, next_budget - now, today}}
"""
)

# KEYS: meta, limits, streams, settled. ARGV: request id, tokens taken, tokens used, tokens a minute
# (empty is no limit), the day they were counted to (empty when admitted without Redis).
# What was taken here is in `streams`; what was not is charged now. Each happens once.
_SETTLE = Script(
    _CONSTANTS
    + """
local id, taken, used = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local limit, day = tonumber(ARGV[4]), tonumber(ARGV[5])
if redis.call('EXISTS', KEYS[1]) == 0 then return end
if not day then
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', whole(now - LATE))
  if redis.call('ZADD', KEYS[4], 'NX', whole(now), id) == 0 then return end
  redis.call('PEXPIRE', KEYS[4], LATE / 1000)
end
if redis.call('ZREM', KEYS[3], id) == 0 then
  if day then return end
  taken = 0
end
local charge = used - taken
local state = redis.call('HMGET', KEYS[2], 'tokens', 'day', 'day_tokens')
if limit then
  local full_at = tonumber(state[1] or 0)
  if charge > 0 then full_at = math.max(full_at, now) end
  full_at = full_at + math.floor(used * MINUTE / limit) - math.floor(taken * MINUTE / limit)
  redis.call('HSET', KEYS[2], 'tokens', whole(full_at))
end
if tonumber(state[2]) == (day or today) then
  redis.call('HSET', KEYS[2], 'day_tokens', whole(math.max(0, tonumber(state[3]) + charge)))
elseif charge > 0 then
  redis.call('HSET', KEYS[2], 'day', today, 'day_tokens', whole(charge))
end
redis.call('PEXPIRE', KEYS[2], 2 * DAY / 1000)
"""
)

# KEYS: meta, sockets. ARGV: socket id, length of a lease, how many there may be.
_OPEN_SOCKET = Script(
    _CONSTANTS
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', whole(now))
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return 0 end
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('ZADD', KEYS[2], whole(now + tonumber(ARGV[2])), ARGV[1])
  redis.call('PEXPIRE', KEYS[2], DAY / 1000)
end
return 1
"""
)

# KEYS: streams or sockets. ARGV: length of a lease, ids. Those that are not there stay away.
_RENEW = Script(
    _CONSTANTS
    + """
for index = 2, #ARGV do
  redis.call('ZADD', KEYS[1], 'XX', whole(now + tonumber(ARGV[1])), ARGV[index])
end
"""
)


class Admission(msgspec.Struct, frozen=True):
    """A request that may run, and what it has taken. `day` is `None` if Redis was not asked.

    `requests` and `tokens` are what is left of the tenant's limits a minute, if it has them.
    """

    tenant_id: str
    request_id: str
    taken_tokens: int
    limits: TenantLimits
    requests: Quota | None
    tokens: Quota | None
    day: int | None


class Limiter:
    """Holds tenants to their limits, over all processes that share a Redis.

    While Redis is down this process goes by its own estimate (see `tenants.local_limits`); nothing
    here raises `StoreUnavailable`. A tenant without a limit costs no round trip.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._lease = int(lease_seconds * 1e6)
        self._clock = clock
        self._local = LocalLimits(clock)
        self._replicas = 1
        # What could not be handed in: the tokens that a request has used, and until when it counts.
        self._unsettled: dict[str, tuple[Admission, int, float]] = {}

    async def admit(self, tenant: Tenant, request_id: str, tokens: int) -> Admission:
        """Take what a request may use, prompt and output together, for as long as it runs.

        Who is admitted must `settle`. Raises `LimitExceeded`; nothing is taken then.
        """
        limits = tenant.limits
        day: int | None = None
        if not _counts_requests(limits):
            verdict = Verdict("", 0, 0, 0, 0)
        else:
            try:
                verdict = await self._admit_in_redis(tenant.id, limits, request_id, tokens)
            except StoreUnavailable:
                verdict = self._local.admit(tenant.id, limits, request_id, tokens, self._replicas)
            else:
                day = verdict.day
                if not verdict.limited:
                    self._local.note_admitted(tenant.id, limits, request_id, tokens)
        if verdict.limited:
            raise verdict.error(limits, tokens)
        return Admission(
            tenant_id=tenant.id,
            request_id=request_id,
            taken_tokens=tokens,
            limits=limits,
            requests=verdict.requests(limits),
            tokens=verdict.tokens(limits),
            day=day,
        )

    async def settle(self, admission: Admission, used_tokens: int) -> None:
        """End a request that used so many tokens; the rest is given back, once.

        What Redis does not take now is handed in with a later `renew`.
        """
        if not _counts_requests(admission.limits):
            return
        self._local.note_settled(admission.tenant_id, admission.request_id, used_tokens)
        try:
            await self._settle_in_redis(admission, used_tokens)
        except StoreUnavailable:
            until = self._clock() + _LATE_SECONDS
            self._unsettled[admission.request_id] = admission, used_tokens, until

    async def open_socket(self, tenant: Tenant, socket_id: str) -> None:
        """Count a socket, until it is closed. Raises `LimitExceeded`."""
        most = tenant.limits.sockets
        if most is None:
            return
        mine = self._local.sockets(tenant.id)
        try:
            opened = await self._redis.run_script(
                _OPEN_SOCKET,
                [keyspace.meta(tenant.id), keyspace.sockets(tenant.id)],
                [socket_id, self._lease, most],
            )
        except StoreUnavailable:
            opened = len(mine) < most and len(mine) < max(1, most // self._replicas)
        if not opened:
            raise Verdict("sockets", STREAM_RETRY, 0, 0, 0).error(tenant.limits, 0)
        mine.add(socket_id)

    async def close_socket(self, tenant: Tenant, socket_id: str) -> None:
        """Count a socket no longer; where Redis is down its lease will end."""
        mine = self._local.sockets(tenant.id)
        if socket_id in mine:
            mine.remove(socket_id)
            try:
                await self._redis.execute("ZREM", keyspace.sockets(tenant.id), socket_id)
            except StoreUnavailable as error:
                _log.info("a closed socket counts until its lease ends: %s", error)

    async def renew(self, admissions: Iterable[Admission]) -> None:
        """The heartbeat, every few seconds: keep these requests and all open sockets counted.

        Also hands in what could not be settled, and learns how many replicas there are.
        """
        self._local.forget_idle()
        leases: dict[str, list[str]] = defaultdict(list)
        for admission in admissions:
            if _counts_requests(admission.limits):
                leases[keyspace.streams(admission.tenant_id)].append(admission.request_id)
        for tenant_id, socket_ids in self._local.all_sockets().items():
            leases[keyspace.sockets(tenant_id)] += socket_ids
        try:
            self._replicas = max(1, await changes.count_subscribers(self._redis))
            await asyncio.gather(
                *(
                    self._redis.run_script(_RENEW, [key], [self._lease, *ids])
                    for key, ids in leases.items()
                )
            )
            await self._settle_late()
        except StoreUnavailable as error:
            _log.debug("leases are not renewed: %s", error)

    async def _settle_late(self) -> None:
        for request_id, (admission, used_tokens, until) in list(self._unsettled.items()):
            if self._clock() < until:
                await self._settle_in_redis(admission, used_tokens)
            self._unsettled.pop(request_id, None)

    async def _admit_in_redis(
        self, tenant_id: str, limits: TenantLimits, request_id: str, tokens: int
    ) -> Verdict:
        reply = await self._redis.run_script(
            _ADMIT,
            [keyspace.meta(tenant_id), keyspace.limits(tenant_id), keyspace.streams(tenant_id)],
            [
                request_id,
                tokens,
                self._lease,
                _argument(limits.requests_per_minute),
                _argument(limits.tokens_per_minute),
                _argument(limits.tokens_per_day),
                _argument(limits.concurrent_streams),
            ],
        )
        limited, *times = reply
        return Verdict(limited.decode(), *times)

    async def _settle_in_redis(self, admission: Admission, used_tokens: int) -> None:
        tenant_id = admission.tenant_id
        await self._redis.run_script(
            _SETTLE,
            [
                keyspace.meta(tenant_id),
                keyspace.limits(tenant_id),
                keyspace.streams(tenant_id),
                keyspace.settled(tenant_id),
            ],
            [
                admission.request_id,
                admission.taken_tokens,
                used_tokens,
                _argument(admission.limits.tokens_per_minute),
                _argument(admission.day),
            ],
        )


def _counts_requests(limits: TenantLimits) -> bool:
    """Whether anything of a request is limited over all replicas."""
    return any(
        limit is not None
        for limit in (
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.tokens_per_day,
            limits.concurrent_streams,
        )
    )


def _argument(limit: int | None) -> int | str:
    return "" if limit is None else limit
