"""What many tenants used over some days: summed where it lies, in few round trips."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from tenants import redis_keys
from tenants.errors import InvalidField
from tenants.storage.connection import Command, GuardedRedis, Script
from tenants.usage.usage import GROUP, HOLDS, SHARED, Counts, charges, days_of

MAX_DAYS = 92
"""Three months: for how many days the usage of all tenants is summed at once."""
_AT_ONCE = 256
_QUANTITIES = (
    *("requests", "prompt_tokens", "cached_tokens", "cache_write_tokens", "computed_tokens"),
    *("output_tokens", "lease_block_seconds", "stream_milliseconds", "cost_nanos"),
)
_BASE = 10**9

# KEYS: spending, usage, presumed. ARGV: today; days and quantities, each in a row. Returns two
# numbers for each quantity in a row, billions and the rest: together they are exact, where doubles
# are not. Whichever is less is read: all that there is, or what may be of these days.
_SUM = Script(
    HOLDS
    + """
local time = redis.call('TIME')
book_expired(KEYS[1], KEYS[2], KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1])
local length = redis.call('HLEN', KEYS[2])
if length == 0 then return false end
local days, places, sums, num_days = {}, {}, {}, 0
for day in string.gmatch(ARGV[2], '%S+') do
  days[day] = true
  num_days = num_days + 1
end
for quantity in string.gmatch(ARGV[3], '%S+') do
  places[quantity] = #sums + 1
  sums[#sums + 1], sums[#sums + 2] = 0, 0
end
local function add(place, count)
  local sign, high, low = string.match(count, '^(-?)(%d-)(%d?%d?%d?%d?%d?%d?%d?%d?%d)$')
  if not low then return end
  local factor = sign == '-' and -1 or 1
  sums[place] = sums[place] + factor * (tonumber(high) or 0)
  sums[place + 1] = sums[place + 1] + factor * tonumber(low)
end
if length < num_days * #sums / 2 then
  local all = redis.call('HGETALL', KEYS[2])
  for at = 1, #all, 2 do
    local place = places[string.sub(all[at], 12)]
    if place and days[string.sub(all[at], 1, 10)] then add(place, all[at + 1]) end
  end
else
  for quantity, place in pairs(places) do
    local fields = {}
    for day in pairs(days) do fields[#fields + 1] = day .. ':' .. quantity end
    for _, count in ipairs(redis.call('HMGET', KEYS[2], unpack(fields))) do
      if count then add(place, count) end
    end
  end
end
for place = 1, #sums do sums[place] = string.format('%.0f', sums[place]) end
return table.concat(sums, ' ')
"""
)


class TotalUsage(msgspec.Struct, kw_only=True):
    """What a tenant used over some days; the quantities are those of `DayUsage`."""

    tenant: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    lease_block_seconds: int = 0
    stream_milliseconds: int = 0
    cost_nanos: int = 0

    @property
    def stream_seconds(self) -> float:
        """As `DayUsage` has it."""
        return self.stream_milliseconds / 1000

    @property
    def is_any(self) -> bool:
        """Whether there is anything to tell."""
        return any(getattr(self, name) for name in _QUANTITIES)


async def read_totals(
    redis: GuardedRedis,
    tenants: Sequence[str],
    groups: Sequence[str],
    since: date,
    until: date,
) -> list[TotalUsage]:
    """What each of the tenants used from `since` to `until`, both included, if anything.

    Of what was computed for the share groups, named by `owner`, each has its part. Raises
    `InvalidField` ("since", "until"), `StoreUnavailable`.
    """
    days = _days(since, until)
    totals = {one: TotalUsage(tenant=one) for one in tenants}
    arguments = [datetime.now(UTC).date().isoformat(), " ".join(days), " ".join(_QUANTITIES)]
    calls = [(_keys(one), arguments) for one in tenants]
    async for place, reply in redis.read_by_script(_SUM, calls):
        sums = map(int, () if reply is None else reply.split())
        for quantity, billions, rest in zip(_QUANTITIES, sums, sums, strict=False):
            setattr(totals[tenants[place]], quantity, billions * _BASE + rest)
    asked: list[Command] = [("HGETALL", redis_keys.usage(one)) for one in groups]
    async for place, reply in _each(redis, asked):
        if reply:
            await _charge(redis, groups[place], reply, set(days), totals)
    return [one for one in totals.values() if one.is_any]


async def _charge(
    redis: GuardedRedis,
    group: str,
    counts: dict[bytes, bytes],
    days: set[str],
    totals: dict[str, TotalUsage],
) -> None:
    """Add to the totals their parts of what was computed for a group on these days."""
    charged = await asyncio.to_thread(lambda: charges(days_of(counts), SHARED))
    parts: list[tuple[str, list[tuple[str, Counts]]]] = []
    commands: list[Command] = []
    for member, by_day in charged.items():
        mine = [(day, part) for day, part in by_day.items() if day in days]
        if member in totals and mine:
            fields = [f"{day}:{GROUP}{group}" for day, _ in mine]
            commands.append(("HMGET", redis_keys.usage(member), *fields))
            parts.append((member, mine))
    async for place, reply in _each(redis, commands):
        member, mine = parts[place]
        for (_, part), used in zip(mine, reply or (), strict=False):
            if used is None:  # it was an earlier tenant of this id
                continue
            for quantity, amount in part.items():
                total = totals[member]
                setattr(total, quantity, getattr(total, quantity) + amount)


async def _each(redis: GuardedRedis, commands: Sequence[Command]) -> AsyncIterator[tuple[int, Any]]:
    """Each reply with its command's place; `None` where Redis finds it to be wrong."""
    for first in range(0, len(commands), _AT_ONCE):
        replies = await redis.each(*commands[first : first + _AT_ONCE])
        for at, reply in enumerate(replies):
            yield first + at, reply


def _keys(tenant: str) -> list[str]:
    return [redis_keys.spending(tenant), redis_keys.usage(tenant), redis_keys.presumed(tenant)]


def _days(since: date, until: date) -> list[str]:
    if until < since:
        raise InvalidField("until", f"not before since, {since}")
    count = (until - since).days + 1
    if count > MAX_DAYS:
        raise InvalidField("since", f"{MAX_DAYS} days up to until, at most")
    return [(since + timedelta(days=day)).isoformat() for day in range(count)]
