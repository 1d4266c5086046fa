"""What tenants used, by UTC day: counted in each process, handed in to Redis batch by batch."""

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

_log = logging.getLogger(__name__)
FLUSH_SECONDS = 1.0
_BATCH_TTL_SECONDS = 7 * 24 * 3600

# KEYS: meta, deleting, usage, batch. ARGV: the batch's number, seconds to remember it for, and each
# field with its increment. A batch that is here already (its answer was lost) is not added again.
_ADD = Script("""
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then return end
if tonumber(redis.call('GET', KEYS[4]) or 0) >= tonumber(ARGV[1]) then return end
for index = 3, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[3], ARGV[index], ARGV[index + 1])
end
redis.call('SET', KEYS[4], ARGV[1], 'EX', ARGV[2])
""")


class DayUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant used on one UTC day; `cached_tokens` are those of the prompt tokens."""

    day: date
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    stream_seconds: float = 0.0


class _Batch(msgspec.Struct, frozen=True):
    """What is handed in at once; whoever is not sure that it arrived hands it in again as it is."""

    number: int
    increments: Mapping[str, int]


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
        self._is_behind = False

    def add(
        self,
        tenant_id: str,
        *,
        requests: int = 0,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        output_tokens: int = 0,
        stream_seconds: float = 0.0,
    ) -> None:
        """Count what a tenant has used just now."""
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        used = {
            "requests": requests,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "output_tokens": output_tokens,
            "stream_milliseconds": round(stream_seconds * 1000),
        }
        for quantity, amount in used.items():
            if amount:
                self._counts[tenant_id][f"{day}:{quantity}"] += amount

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
                self._sent[tenant_id] = _Batch(self._batches, self._counts.pop(tenant_id))
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

    def _call(self, tenant_id: str, batch: _Batch) -> tuple[list[str], list[Argument]]:
        keys = [
            redis_keys.meta(tenant_id),
            redis_keys.deleting(tenant_id),
            redis_keys.usage(tenant_id),
            redis_keys.usage_batch(tenant_id, self._meter_id),
        ]
        increments = [word for increment in batch.increments.items() for word in increment]
        return keys, [batch.number, _BATCH_TTL_SECONDS, *increments]


async def read_all(redis: GuardedRedis, tenant_id: str) -> list[DayUsage]:
    """All days on which a tenant used anything, in order. Raises `StoreUnavailable`."""
    counts = await redis.execute("HGETALL", redis_keys.usage(tenant_id))
    days: dict[str, dict[str, int]] = {}
    for field, count in counts.items():
        day, _, quantity = field.decode().partition(":")
        days.setdefault(day, {})[quantity] = int(count)
    return [
        DayUsage(
            day=date.fromisoformat(day),
            requests=used.get("requests", 0),
            prompt_tokens=used.get("prompt_tokens", 0),
            cached_tokens=used.get("cached_tokens", 0),
            output_tokens=used.get("output_tokens", 0),
            stream_seconds=used.get("stream_milliseconds", 0) / 1000,
        )
        for day, used in sorted(days.items())
    ]
