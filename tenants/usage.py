"""What tenants used, by UTC day: counted in each process, handed in to Redis batch by batch.

What was computed of a share group's prompts is counted for the group, under its `owner`; a member's
part of it (see `tenants.shared_costs`) is found when its usage is read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime

import msgspec

from tenants import redis_keys
from tenants.connection import Argument, GuardedRedis, Script
from tenants.errors import InvalidField, StoreUnavailable
from tenants.shared_costs import USED_BY, Counts, charges

_log = logging.getLogger(__name__)
FLUSH_SECONDS = 1.0
_BATCH_TTL_SECONDS = 7 * 24 * 3600
_SHARED = ("computed_tokens", "lease_block_seconds", "cost_nanos")
"""What of a group's usage its members are charged for."""
_GROUP = "group:"
"""A tenant's quantity `group:OWNER` says that it used a group's prompts."""

# KEYS: meta, deleting, usage, batch, spending. ARGV: the batch's number, seconds to remember it
# for, how many reservations of a budget it takes the place of, these, and each field with its
# increment. A batch that is here already (its answer was lost) is not added again.
_ADD = Script("""
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then return end
if tonumber(redis.call('GET', KEYS[4]) or 0) >= tonumber(ARGV[1]) then return end
local last = 3 + tonumber(ARGV[3])
for index = 4, last do redis.call('ZREM', KEYS[5], ARGV[index]) end
for index = last + 1, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[3], ARGV[index], ARGV[index + 1])
end
redis.call('SET', KEYS[4], ARGV[1], 'EX', ARGV[2])
""")


class DayUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant used on one UTC day.

    Of the prompt tokens, `cached_tokens` were found in the cache, which spared computing them, and
    `cache_write_tokens` were computed and left there. `computed_tokens` are prompt tokens that were
    computed for it: those of its requests but for a share group's prompts, its part of what was
    computed of these, and its own registered prompts as they were warmed. `lease_block_seconds` is
    for how long it leased how many KV blocks, its part of the groups' included. `cost_nanos` is
    what all of this cost, in billionths of the currency, at the prices of the moment.
    """

    day: date
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    lease_block_seconds: int = 0
    stream_seconds: float = 0.0
    cost_nanos: int = 0


class _Batch(msgspec.Struct, frozen=True):
    """What is handed in at once; whoever is not sure that it arrived hands it in again as it is."""

    number: int
    increments: Mapping[str, int]
    released: tuple[str, ...] = ()


class UsageMeter:
    """Counts what tenants use in this process and keeps it until Redis has it, exactly once."""

    def __init__(
        self,
        redis: GuardedRedis,
        *,
        flush_seconds: float = FLUSH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._meter_id = secrets.token_hex(8)
        self._batches = 0
        # By tenant: field to how much was used since the last batch; and the batch under way.
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._sent: dict[str, _Batch] = {}
        self._released: defaultdict[str, list[str]] = defaultdict(list)
        self._is_behind = False

    def add(
        self,
        tenant_id: str,
        *,
        requests: int = 0,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
        computed_tokens: int = 0,
        output_tokens: int = 0,
        lease_block_seconds: int = 0,
        stream_seconds: float = 0.0,
        cost_nanos: int = 0,
    ) -> None:
        """Count what a tenant has used just now; see `DayUsage`."""
        used = {
            "requests": requests,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "cache_write_tokens": cache_write_tokens,
            "computed_tokens": computed_tokens,
            "output_tokens": output_tokens,
            "lease_block_seconds": lease_block_seconds,
            "stream_milliseconds": round(stream_seconds * 1000),
            "cost_nanos": cost_nanos,
        }
        self._count(tenant_id, used)

    def release(self, tenant_id: str, reservation: str) -> None:
        """Have a reservation of a tenant's budget end when what was counted until now is booked."""
        self._released[tenant_id].append(reservation)
        self._counts[tenant_id]  # to be handed in, though it may have cost nothing

    def add_shared(
        self,
        group: str,
        *,
        computed_tokens: int = 0,
        lease_block_seconds: int = 0,
        cost_nanos: int = 0,
        user: str = "",
        used_tokens: int = 0,
    ) -> None:
        """Count what was computed, and leased, of the prompts of a share group, named by `owner`.

        And that a request of the tenant `user` had `used_tokens` of them, computed or found.
        """
        of_group = {
            "computed_tokens": computed_tokens,
            "lease_block_seconds": lease_block_seconds,
            "cost_nanos": cost_nanos,
            f"{USED_BY}{user}": used_tokens,
        }
        self._count(group, of_group)
        self._count(user, {f"{_GROUP}{group}": used_tokens})

    def _count(self, owner: str, used: Mapping[str, int]) -> None:
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        for quantity, amount in used.items():
            if amount:
                self._counts[owner][f"{day}:{quantity}"] += amount

    async def run(self) -> None:
        """Hand in what was used, every second until cancelled, and then what is left."""
        try:
            while True:
                await asyncio.sleep(self._flush_seconds)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Hand in what was used until now; what Redis does not take is kept for the next time."""
        try:
            await self._hand_in()
            for tenant_id in [*self._counts]:
                self._batches += 1
                released = tuple(self._released.pop(tenant_id, ()))
                counts = self._counts.pop(tenant_id)
                self._sent[tenant_id] = _Batch(self._batches, counts, released)
            await self._hand_in()
        except StoreUnavailable as error:
            if not self._is_behind:
                _log.warning("usage is kept here until the store takes it: %s", error)
            self._is_behind = True
            return
        if self._is_behind:
            _log.info("the store has all usage again")
        self._is_behind = False

    async def read(self, tenant_id: str, since: date, until: date) -> list[DayUsage]:
        """The days from `since` to `until`, both included, on which a tenant used anything.

        Raises `InvalidField` ("until"), `StoreUnavailable`.
        """
        if until < since:
            raise InvalidField("until", f"not before since, {since}")
        days = await read_all(self._redis, tenant_id)
        return [usage for usage in days if since <= usage.day <= until]

    async def _hand_in(self) -> None:
        calls = [self._call(tenant_id, batch) for tenant_id, batch in self._sent.items()]
        await self._redis.run_script_on_each(_ADD, calls)
        self._sent.clear()

    def _call(self, owner: str, batch: _Batch) -> tuple[list[str], list[Argument]]:
        return _adding(owner, self._meter_id, batch)


async def read_all(redis: GuardedRedis, tenant_id: str) -> list[DayUsage]:
    """All days on which a tenant used anything, in order. Raises `StoreUnavailable`."""
    days = await _read_days(redis, tenant_id)
    for day, part in await _shared_parts(redis, tenant_id, days):
        days[day].update(part)
    return [
        DayUsage(
            day=date.fromisoformat(day),
            requests=used["requests"],
            prompt_tokens=used["prompt_tokens"],
            cached_tokens=used["cached_tokens"],
            cache_write_tokens=used["cache_write_tokens"],
            computed_tokens=used["computed_tokens"],
            output_tokens=used["output_tokens"],
            lease_block_seconds=used["lease_block_seconds"],
            stream_seconds=used["stream_milliseconds"] / 1000,
            cost_nanos=used["cost_nanos"],
        )
        for day, used in sorted(days.items())
    ]


async def shared_cost(redis: GuardedRedis, tenant_id: str, month: str) -> int:
    """What a tenant owes for its share groups' prompts in a month (YYYY-MM), in billionths."""
    parts = await _shared_parts(redis, tenant_id, await _read_days(redis, tenant_id))
    return sum(part["cost_nanos"] for day, part in parts if day.startswith(month))


async def settle_group(redis: GuardedRedis, group: str, number: int) -> None:
    """Charge a group's members for good, before its usage is deleted. Raises `StoreUnavailable`.

    What is charged under a `number` is not charged again; a later group of the same name needs a
    greater one.
    """
    shared = await _read_days(redis, group)
    calls = []
    for member, days in charges(shared, _SHARED).items():
        known = await _read_days(redis, member)
        parts = {
            f"{day}:{quantity}": amount
            for day, part in days.items()
            if f"{_GROUP}{group}" in known.get(day, ())
            for quantity, amount in part.items()
        }
        calls.append(_adding(member, group, _Batch(number, parts)))
    await redis.run_script_on_each(_ADD, calls)


async def _shared_parts(
    redis: GuardedRedis, tenant_id: str, days: Mapping[str, Counts]
) -> list[tuple[str, Counts]]:
    """By day, a tenant's parts of what was computed for its share groups."""
    names = {name for used in days.values() for name in used if name.startswith(_GROUP)}
    parts = []
    for name in sorted(names):
        shared = await _read_days(redis, name.removeprefix(_GROUP))
        for day, part in charges(shared, _SHARED).get(tenant_id, {}).items():
            if name in days.get(day, ()):  # else it was an earlier tenant of this id
                parts.append((day, part))
    return parts


async def _read_days(redis: GuardedRedis, owner: str) -> dict[str, Counter[str]]:
    """By day, how much of each quantity was counted for a tenant or a share group."""
    counts = await redis.execute("HGETALL", redis_keys.usage(owner))
    days: dict[str, Counter[str]] = {}
    for field, count in counts.items():
        day, _, quantity = field.decode().partition(":")
        days.setdefault(day, Counter())[quantity] = int(count)
    return days


def _adding(owner: str, meter_id: str, batch: _Batch) -> tuple[list[str], list[Argument]]:
    """Keys and arguments of `_ADD`."""
    keys = [
        redis_keys.meta(owner),
        redis_keys.deleting(owner),
        redis_keys.usage(owner),
        redis_keys.usage_batch(owner, meter_id),
        redis_keys.spending(owner),
    ]
    increments = [word for increment in batch.increments.items() for word in increment]
    head = [batch.number, _BATCH_TTL_SECONDS, len(batch.released)]
    return keys, [*head, *batch.released, *increments]
