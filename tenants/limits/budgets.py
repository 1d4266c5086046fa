"""What tenants may spend in a month (UTC), over all replicas.

The truth is the usage that is booked; beside it stands what running requests have reserved, at the
most that they can cost. One's reservation goes in the very step that books its cost; where its
lease ends before, it is booked as it stands. For both see `tenants.usage.usage`.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from tenants import redis_keys
from tenants.errors import StoreUnavailable
from tenants.limits.limiter import LEASE_SECONDS, Limiter
from tenants.limits.verdict import LimitExceeded
from tenants.records import Change, Tenant
from tenants.storage.commits import LIVES
from tenants.storage.connection import Argument, GuardedRedis, Script
from tenants.storage.outbox import Outbox
from tenants.usage import usage
from tenants.usage.prices import NANOS_PER_MICRO, Prices, shown
from tenants.usage.usage import HOLDS

_log = logging.getLogger(__name__)
Threshold = Literal["soft", "hard"]
_TOLD_SECONDS = 40 * 86_400
_SHARED_SECONDS = 60.0
"""For how long what a tenant owes for its share group's prompts is believed."""

# KEYS: meta, usage, spending, told, presumed, generation. ARGV: what is asked for, length of a
# lease (seconds), month (YYYY-MM), what else was spent in it, hard and soft budget (empty is
# none), 1 if somebody is told, today, the generation, the reservations. Gives whether they are
# granted, what was spent, what is reserved now, and which budgets are reached and not told yet.
_RESERVE = Script(
    LIVES
    + HOLDS
    + """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local amount, hard, soft = tonumber(ARGV[1]), tonumber(ARGV[5]), tonumber(ARGV[6])
local there, reached = lives({KEYS[1]}, KEYS[6], ARGV[9]), {}
if there then book_expired(KEYS[3], KEYS[2], KEYS[5], now, ARGV[8]) end
local days = {}
for day = 1, 31 do days[day] = string.format('%s-%02d:cost_nanos', ARGV[3], day) end
local spent, held = tonumber(ARGV[4]), 0
for _, cost in ipairs(redis.call('HMGET', KEYS[2], unpack(days))) do
  spent = spent + (tonumber(cost) or 0)
end
for _, hold in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  held = held + tonumber(string.match(hold, ':(%d+)$') or 0)
end
local granted = not hard or spent + held + amount <= hard
local function tell(name, budget)
  local field = ARGV[3] .. ':' .. name .. ':' .. budget
  if redis.call('HEXISTS', KEYS[4], field) == 0 then reached[#reached + 1] = name end
end
if there and ARGV[7] == '1' then
  if soft and spent >= soft then tell('soft', ARGV[6]) end
  if not granted then tell('hard', ARGV[5]) end
end
if granted and there then
  for index = 10, #ARGV do
    redis.call('ZADD', KEYS[3], string.format('%.0f', now + 1000 * ARGV[2]), ARGV[index])
  end
  redis.call('PERSIST', KEYS[3])
  held = held + amount
end
return {granted and 1 or 0, string.format('%.0f', spent), string.format('%.0f', held), reached}
"""
)

# KEYS: spending. ARGV: length of a lease (seconds), reservations. What is not there stays away.
_RENEW = Script("""
local time = redis.call('TIME')
local ends = time[1] * 1000 + math.floor(time[2] / 1000) + 1000 * ARGV[1]
for index = 2, #ARGV do
  redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', ends), ARGV[index])
end
""")


class Hold(msgspec.Struct, frozen=True):
    """What a request has reserved of its tenant's budget; `name` is how it is kept."""

    tenant_id: str
    name: str
    nanos: int


class _Known:
    """What one process knows of a tenant's month, for when the store is away."""

    def __init__(self, month: str, left: int | None) -> None:
        self.month = month
        self.left = left
        """Of the hard budget, when the store was last asked; `None` where there is none."""
        self.taken = 0


class Budgets:
    """Holds tenants to their budgets; nothing here raises `StoreUnavailable`.

    While Redis is down this process gives out its part of what was left when it last knew.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        limiter: Limiter,
        clock: Callable[[], float] = time.time,
        outbox: Outbox | None = None,
    ) -> None:
        """`outbox` is told of budgets that are reached, each once in a month."""
        self._redis = redis
        self._outbox = outbox
        self._limiter = limiter
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._shared: dict[str, tuple[float, str, int]] = {}
        redis.add_listener(self._on_change)

    def hold(self, tenant: Tenant, request_id: str, nanos: int) -> Hold | None:
        """What a request that may cost so much is to reserve; nothing without a budget."""
        limits = tenant.limits
        if limits.soft_budget_micros is None and limits.hard_budget_micros is None:
            return None
        return Hold(tenant.id, f"{request_id}:{nanos}", nanos)

    async def reserve(self, tenant: Tenant, holds: Sequence[Hold], prices: Prices) -> str | None:
        """Reserve what requests may cost together; a warning where the soft budget is spent.

        Raises `LimitExceeded`; nothing is reserved then.
        """
        now = datetime.fromtimestamp(self._clock(), UTC)
        month, hard = f"{now:%Y-%m}", _nanos(tenant.limits.hard_budget_micros)
        try:
            shared = await self._shared_cost(tenant.id, month)
            granted, spent, held, reached = await self._ask(
                tenant, holds, f"{now:%Y-%m-%d}", shared
            )
        except StoreUnavailable:
            if not self._take_locally(holds, month, hard):
                raise _exceeded(tenant, holds, prices, now) from None
            return None
        self._known[tenant.id] = _Known(month, None if hard is None else hard - spent - held)
        for threshold in reached:
            await self._tell(tenant, threshold, now, spent, prices)
        if not granted:
            raise _exceeded(tenant, holds, prices, now)
        soft = _nanos(tenant.limits.soft_budget_micros)
        if soft is None or spent < soft:
            return None
        return f"the soft budget of {shown(soft)} {prices.currency} for {month} is spent"

    def settle(self, hold: Hold, nanos: int) -> None:
        """Account for what a request has cost of what it reserved; the meter releases the rest."""
        known = self._known.get(hold.tenant_id)
        if known is not None:
            known.taken -= hold.nanos - nanos

    async def renew(self, holds: Iterable[Hold]) -> None:
        """The heartbeat: keep these reservations."""
        names: defaultdict[str, list[str]] = defaultdict(list)
        for hold in holds:
            names[redis_keys.spending(hold.tenant_id)].append(hold.name)
        calls: list[tuple[list[str], list[Argument]]] = [
            ([key], [LEASE_SECONDS, *held]) for key, held in names.items()
        ]
        try:
            await self._redis.run_script_on_each(_RENEW, calls)
        except StoreUnavailable as error:
            _log.debug("reservations are not renewed: %s", error)

    async def _ask(
        self, tenant: Tenant, holds: Sequence[Hold], today: str, shared: int
    ) -> tuple[bool, int, int, list[Threshold]]:
        budgets = map(_nanos, (tenant.limits.hard_budget_micros, tenant.limits.soft_budget_micros))
        granted, spent, held, reached = await self._redis.run_script(
            _RESERVE,
            [
                redis_keys.meta(tenant.id),
                redis_keys.usage(tenant.id),
                redis_keys.spending(tenant.id),
                redis_keys.budget_told(tenant.id),
                redis_keys.presumed(tenant.id),
                redis_keys.generation(tenant.id),
            ],
            [
                sum(hold.nanos for hold in holds),
                LEASE_SECONDS,
                today[: len("YYYY-MM")],
                shared,
                *("" if budget is None else budget for budget in budgets),
                int(self._outbox is not None),
                today,
                tenant.generation,
                *(hold.name for hold in holds),
            ],
        )
        return bool(granted), int(spent), int(held), [name.decode() for name in reached]

    async def _tell(
        self, tenant: Tenant, threshold: Threshold, now: datetime, spent: int, prices: Prices
    ) -> None:
        """Put into the outbox that a budget is reached.

        Only once it is there, it counts as told: what lies between may fail, and the same message
        put twice is one.
        """
        assert self._outbox is not None
        micros = getattr(tenant.limits, f"{threshold}_budget_micros")
        data = {
            "tenant": tenant.id,
            "threshold": threshold,
            "month": f"{now:%Y-%m}",
            "budget": shown(micros * NANOS_PER_MICRO),
            "spent": shown(spent),
            "currency": prices.currency,
        }
        event = {"type": "budget.reached", "timestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}", "data": data}
        # A receiver knows messages by their names: a deleted tenant's are another one's.
        whose = f"{tenant.id}-{tenant.created_at:.0f}"
        name = f"budget-{whose}-{now:%Y-%m}-{threshold}-{micros}"
        told, field = redis_keys.budget_told(tenant.id), f"{now:%Y-%m}:{threshold}"
        try:
            if await self._outbox.put(name, msgspec.json.encode(event)):
                await self._redis.transaction(
                    ("HSET", told, f"{field}:{micros * NANOS_PER_MICRO}", 1),
                    ("EXPIRE", told, _TOLD_SECONDS),
                )
        except StoreUnavailable as error:
            _log.error("%s is not told: %s", name, error)

    async def _shared_cost(self, tenant_id: str, month: str) -> int:
        """What a tenant owes of the month for its share groups' prompts, about."""
        now = self._clock()
        at, known, nanos = self._shared.get(tenant_id, (0.0, "", 0))
        if known != month or not 0 <= now - at < _SHARED_SECONDS:
            nanos = await usage.shared_cost(self._redis, tenant_id, month)
            self._shared[tenant_id] = now, month, nanos
        return nanos

    def _on_change(self, change: Change) -> None:
        if change.kind == "deleted":
            self._known.pop(change.tenant_id, None)
            self._shared.pop(change.tenant_id, None)

    def _take_locally(self, holds: Sequence[Hold], month: str, hard: int | None) -> bool:
        tenant_id, nanos = holds[0].tenant_id, sum(hold.nanos for hold in holds)
        known = self._known.get(tenant_id)
        if known is None or known.month != month:
            known = self._known[tenant_id] = _Known(month, hard)
        if known.left is not None:
            if known.taken + nanos > known.left // self._limiter.replicas:
                return False
            known.taken += nanos
        return True


def _exceeded(
    tenant: Tenant, holds: Sequence[Hold], prices: Prices, now: datetime
) -> LimitExceeded:
    budget = shown(_nanos(tenant.limits.hard_budget_micros) or 0)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    begins = datetime(year, month, 1, tzinfo=UTC)
    most = shown(sum(hold.nanos for hold in holds))
    message = (
        f"The hard budget of {budget} {prices.currency} for {now:%Y-%m} does not allow this "
        f"request, which may cost {most}. The next one begins at "
        f"{begins:%Y-%m-%dT%H:%M:%SZ}."
    )
    return LimitExceeded("budget", message, (begins - now).total_seconds())


def _nanos(micros: int | None) -> int | None:
    return None if micros is None else micros * NANOS_PER_MICRO
