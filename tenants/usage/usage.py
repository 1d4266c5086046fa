"""What tenants used, by UTC day: counted in each process, handed in to Redis batch by batch.

What was computed once of a share group's prompts is counted for the group, under its `owner`, with
how many tokens of them each member's requests had. A day's amount is charged to the members in
proportion to that when their usage is read; on a day on which nobody used them it waits for the
next one on which somebody did. Nothing is rounded away.

A reservation of a budget whose lease ended unbooked, as its process is gone or was cut off, is
booked as what it had reserved, by whoever finds it: what it has cost is not known here, and nobody
may spend it again. Where its true cost comes after all, from the journal of the process that died
(see `tenants.usage.meter`), it takes the place of that.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Final, TypeAlias

import msgspec

from tenants import redis_keys
from tenants.storage.commits import ANY, LIVES
from tenants.storage.connection import Argument, GuardedRedis, Script

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

Counts = Mapping[str, int]
USED_BY = "used:"
"""A group's quantity `used:TENANT` is how many tokens of its prompts a member's requests had."""
_BATCH_TTL_SECONDS = 60 * 24 * 3600
"""For how long a batch is known whose process was killed before it heard that it had arrived."""
SHARED = ("computed_tokens", "lease_block_seconds", "cost_nanos")
"""What of a group's usage its members are charged for."""
GROUP = "group:"
"""A tenant's quantity `group:OWNER` says that it used a group's prompts."""
ADAPTER = "adapter:"
"""A tenant's quantity `adapter:ADAPTER:QUANTITY` is that part which its requests with one had."""

# KEYS: meta, deleting, usage, batch, spending, presumed, generation. ARGV: the batch's number,
# seconds to remember it for, the generation that is meant, how many reservations of a budget it
# takes the place of, these, and each field with its increment. A batch that is here already (its
# answer was lost) is not added again; one that cannot be added to what stands there is not at all.
_ADD = Script(
    LIVES
    + HOLDS
    + """
if not lives({KEYS[1], KEYS[2]}, KEYS[7], ARGV[3]) then return end
if tonumber(redis.call('GET', KEYS[4]) or 0) >= tonumber(ARGV[1]) then return end
local last = 4 + tonumber(ARGV[4])
for index = last + 1, #ARGV, 2 do
  local there = redis.call('HGET', KEYS[3], ARGV[index]) or '0'
  if #there > 18 or not string.match(there, '^-?%d+$') then
    return redis.error_reply('ERR no count: ' .. ARGV[index])
  end
end
for index = 5, last do release(KEYS[5], KEYS[3], KEYS[6], ARGV[index]) end
for index = last + 1, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[3], ARGV[index], ARGV[index + 1])
end
redis.call('SET', KEYS[4], ARGV[1], 'EX', ARGV[2])
"""
)
Call: TypeAlias = tuple[list[str], list[Argument]]
"""Keys and arguments of what is handed in."""


async def book_expired(redis: GuardedRedis, tenant_id: str) -> None:
    """Have a tenant's usage say what is presumed. Raises `StoreUnavailable`."""
    keys = [
        redis_keys.spending(tenant_id),
        redis_keys.usage(tenant_id),
        redis_keys.presumed(tenant_id),
    ]
    await redis.run_script(_BOOK, keys, [datetime.now(UTC).date().isoformat()])


def split(amount: int, uses: Mapping[str, int]) -> dict[str, int]:
    """`amount` in whole parts that sum up to it, in proportion to `uses`; empty without any.

    By the method of the largest remainder; of equal ones, the name that comes first has it.
    """
    total = sum(uses.values())
    if not total:
        return {}
    parts = {name: amount * use // total for name, use in uses.items()}
    left = amount - sum(parts.values())
    by_remainder = sorted(uses, key=lambda name: (-(amount * uses[name] % total), name))
    for name in by_remainder[:left]:
        parts[name] += 1
    return parts


def charges(days: Mapping[str, Counts], quantities: Iterable[str]) -> dict[str, dict[str, Counts]]:
    """By member and day, its part of each of a group's `quantities` (amounts by day)."""
    waiting = dict.fromkeys(quantities, 0)
    charged: dict[str, dict[str, Counts]] = {}
    for day, counts in sorted(days.items()):
        uses = {
            name.removeprefix(USED_BY): count
            for name, count in counts.items()
            if name.startswith(USED_BY) and count > 0
        }
        for quantity in waiting:
            waiting[quantity] += counts.get(quantity, 0)
        if not uses:
            continue
        parts = {quantity: split(amount, uses) for quantity, amount in waiting.items()}
        for member in uses:
            mine = {quantity: part[member] for quantity, part in parts.items()}
            charged.setdefault(member, {})[day] = mine
        waiting = dict.fromkeys(waiting, 0)
    return charged


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What an account has used, by `DAY:quantity`, and the reservations that end with it."""

    owner: str
    generation: str
    increments: Mapping[str, int]
    released: tuple[str, ...] = ()


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """What is handed in at once; whoever is not sure that it arrived hands it in again as it is."""

    number: int
    entry: Entry


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


class AdapterUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `DayUsage` that a tenant's requests with one `adapter` had on a day.

    One of its share group's has the group's `owner` and a slash before its name.
    """

    day: date
    adapter: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    stream_seconds: float = 0.0
    cost_nanos: int = 0


_NOT_COUNTED = frozenset({"day", "adapter", "stream_seconds"})
_COUNTED = frozenset(DayUsage.__struct_fields__) - _NOT_COUNTED
_COUNTED_OF_ADAPTERS = frozenset(AdapterUsage.__struct_fields__) - _NOT_COUNTED


async def read_all(redis: GuardedRedis, tenant_id: str) -> list[DayUsage]:
    """All days on which a tenant used anything, in order. Raises `StoreUnavailable`."""
    await book_expired(redis, tenant_id)
    days = await _read_days(redis, tenant_id)
    for day, part in await _shared_parts(redis, tenant_id, days):
        days[day].update(part)
    return [
        DayUsage(
            day=date.fromisoformat(day),
            stream_seconds=used["stream_milliseconds"] / 1000,
            **{name: used[name] for name in _COUNTED},
        )
        for day, used in sorted(days.items())
    ]


async def read_by_adapter(redis: GuardedRedis, tenant_id: str) -> list[AdapterUsage]:
    """All that a tenant used with adapters, by day and adapter. Raises `StoreUnavailable`."""
    parts: dict[tuple[str, str], Counter[str]] = {}
    for day, used in (await _read_days(redis, tenant_id)).items():
        for name, amount in used.items():
            if name.startswith(ADAPTER):
                adapter, _, quantity = name.removeprefix(ADAPTER).partition(":")
                parts.setdefault((day, adapter), Counter())[quantity] = amount
    return [
        AdapterUsage(
            day=date.fromisoformat(day),
            adapter=adapter,
            stream_seconds=used["stream_milliseconds"] / 1000,
            **{name: used[name] for name in _COUNTED_OF_ADAPTERS},
        )
        for (day, adapter), used in sorted(parts.items(), key=lambda part: part[0])
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
    for member, days in charges(shared, SHARED).items():
        known = await _read_days(redis, member)
        parts = {
            f"{day}:{quantity}": amount
            for day, part in days.items()
            if f"{GROUP}{group}" in known.get(day, ())
            for quantity, amount in part.items()
        }
        calls.append(adding(group, Batch(number, Entry(member, ANY, parts))))
    await hand_in(redis, calls)


async def hand_in(redis: GuardedRedis, calls: Sequence[Call]) -> list[int]:
    """Add each batch that is not here yet. Raises `StoreUnavailable`: any of them may be here.

    Returns which of them cannot be added to what stands there: nothing of these is.
    """
    return await redis.run_script_on_each(_ADD, calls)


async def generations(redis: GuardedRedis, owners: Sequence[str]) -> dict[str, str]:
    """Those of owners that are there and have one. Raises `StoreUnavailable`."""
    found = await redis.each(*(("GET", redis_keys.generation(one)) for one in owners))
    return {
        owner: one.decode(errors="replace") for owner, one in zip(owners, found, strict=True) if one
    }


async def _shared_parts(
    redis: GuardedRedis, tenant_id: str, days: Mapping[str, Counts]
) -> list[tuple[str, Counts]]:
    """By day, a tenant's parts of what was computed for its share groups."""
    names = {name for used in days.values() for name in used if name.startswith(GROUP)}
    parts = []
    for name in sorted(names):
        shared = await _read_days(redis, name.removeprefix(GROUP))
        for day, part in charges(shared, SHARED).get(tenant_id, {}).items():
            if name in days.get(day, ()):  # else it was an earlier tenant of this id
                parts.append((day, part))
    return parts


async def _read_days(redis: GuardedRedis, owner: str) -> dict[str, Counter[str]]:
    """By day, how much of each quantity was counted for a tenant or a share group."""
    return days_of(await redis.execute("HGETALL", redis_keys.usage(owner)))


def days_of(counts: Mapping[bytes, bytes]) -> dict[str, Counter[str]]:
    """The same of what lies in Redis."""
    days: dict[str, Counter[str]] = {}
    for field, count in counts.items():
        day, _, quantity = field.decode(errors="replace").partition(":")
        with contextlib.suppress(ValueError):  # no Partywall put it there
            date.fromisoformat(day)
            number = int(count)
            days.setdefault(day, Counter())[quantity] = number
    return days


def adding(meter_id: str, batch: Batch) -> Call:
    """What has a batch of a meter's be added, once."""
    entry = batch.entry
    keys = [
        redis_keys.meta(entry.owner),
        redis_keys.deleting(entry.owner),
        redis_keys.usage(entry.owner),
        redis_keys.usage_batch(entry.owner, meter_id),
        redis_keys.spending(entry.owner),
        redis_keys.presumed(entry.owner),
        redis_keys.generation(entry.owner),
    ]
    increments: list[Argument] = [
        word for increment in entry.increments.items() for word in increment
    ]
    head: list[Argument] = [batch.number, _BATCH_TTL_SECONDS, entry.generation, len(entry.released)]
    return keys, [*head, *entry.released, *increments]
