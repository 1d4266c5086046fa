"""What Redis does for `tenants.limits.limiter`, in one step each and by its own clock.

A bucket is kept as when it will be full again (`requests` and `tokens` of the `limits` hash).
Beside it stand `used`, the same bucket had it been asked for nothing but what was really used, each
charged at its request's end; and `held`, what each running request has taken. They say how much may
be given back: never so much that what is left and what others still hold exceed what `used` leaves.
Otherwise a reservation that outlives its refill would come back twice, by time and at its end.
"""

from __future__ import annotations

from tenants.limits.verdict import DAY, MINUTE
from tenants.storage.commits import LIVES
from tenants.storage.connection import Script


def request_name(unique: str, streams: int = 1) -> str:
    """The id of a request that counts as so many streams: each has a member in `streams`."""
    return unique if streams == 1 else f"{unique}*{streams}"


def streams_of(request_id: str) -> int:
    """How many streams a request counts as."""
    _, star, count = request_id.rpartition("*")
    return int(count) if star else 1


STREAM_RETRY = 1_000_000
"""When to try again where something must end first: nobody knows, so soon (microseconds)."""

LATE_SECONDS = 600.0
"""After its lease, a request can still be settled for so long."""

_COMMON = (
    LIVES
    + f"""
local MINUTE, DAY, LATE = {MINUTE}, {DAY}, {int(LATE_SECONDS * 1e6)}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local today = math.floor(now / DAY)
local function whole(number) return string.format('%.0f', number) end
local function cost(amount, limit) return math.floor(amount * MINUTE / limit) end
local longest, limited = 0, ''
local function need(name, wait)
  if longest >= 0 and (wait < 0 or wait > longest) then longest, limited = wait, name end
end
local function bucket(name, full_at, limit, amount)
  full_at = math.max(tonumber(full_at or 0), now)
  if not limit then return now, now end
  local filled_at = full_at + cost(amount, limit)
  need(name, amount > limit and -1 or math.max(0, filled_at - MINUTE - now))
  return full_at, filled_at
end
local function members(id)
  local names = {{id}}
  for number = 2, tonumber(string.match(id, '%*(%d+)$') or 1) do
    names[number] = id .. '/' .. number
  end
  return names
end
local function end_stream(streams, id) redis.call('ZREM', streams, unpack(members(id))) end
local function keep_stream(streams, held, lease, id)
  local dead = redis.call('ZRANGEBYSCORE', streams, '-inf', whole(now - LATE))
  for _, gone in ipairs(dead) do
    redis.call('ZREM', streams, gone)
    redis.call('HDEL', held, gone)
  end
  for _, member in ipairs(members(id)) do
    redis.call('ZADD', streams, whole(now + lease), member)
  end
  redis.call('PEXPIRE', streams, DAY / 1000)
end
"""
)

# KEYS: meta, limits, streams, held, generation. ARGV: length of a lease, limits (empty is none):
# requests and tokens a minute, streams; the generation; and the ids of requests that are admitted
# together or not at all. Gives the fields of a `Verdict`.
ADMIT = Script(
    _COMMON
    + f"""
local lease, stream_limit, ids = tonumber(ARGV[1]), tonumber(ARGV[4]), {{unpack(ARGV, 6)}}
local state = redis.call('HMGET', KEYS[2], 'requests', 'tokens')
local budget = bucket('tokens', state[2], tonumber(ARGV[3]), 0)
longest, limited = 0, ''
local requests, next_requests = bucket('requests', state[1], tonumber(ARGV[2]), #ids)
if stream_limit then
  local more = 0
  for _, id in ipairs(ids) do more = more + #members(id) end
  if more > stream_limit then need('streams', -1) end
  if redis.call('ZCOUNT', KEYS[3], whole(now), '+inf') + more > stream_limit then
    need('streams', {STREAM_RETRY})
  end
end
if limited ~= '' then return {{limited, longest, requests - now, budget - now, today}} end
if lives({{KEYS[1]}}, KEYS[5], ARGV[5]) then
  redis.call('HSET', KEYS[2], 'requests', whole(next_requests))
  redis.call('PEXPIRE', KEYS[2], 2 * DAY / 1000)
  for _, id in ipairs(ids) do keep_stream(KEYS[3], KEYS[4], lease, id) end
end
return {{'', 0, next_requests - now, budget - now, today}}
"""
)

# KEYS: meta, limits, streams, held, generation. ARGV: length of a lease, limits (empty is none):
# requests and tokens a minute, tokens a day; the generation; and by turns, for what is reserved
# together or not at all, a request's id and its tokens. Gives the fields of a `Verdict`; requests
# that are refused are no streams any more.
RESERVE = Script(
    _COMMON
    + """
local lease, day_limit, tokens = tonumber(ARGV[1]), tonumber(ARGV[4]), 0
for index = 6, #ARGV, 2 do tokens = tokens + tonumber(ARGV[index + 1]) end
local state = redis.call('HMGET', KEYS[2], 'requests', 'tokens', 'day', 'day_tokens')
local requests = bucket('requests', state[1], tonumber(ARGV[2]), 0)
longest, limited = 0, ''
local budget, next_budget = bucket('tokens', state[2], tonumber(ARGV[3]), tokens)
local day_tokens = tonumber(state[3]) == today and tonumber(state[4]) or 0
if day_limit and day_tokens + tokens > day_limit then
  need('tokens_per_day', tokens > day_limit and -1 or DAY - now % DAY)
end
if limited ~= '' then
  for index = 6, #ARGV, 2 do end_stream(KEYS[3], ARGV[index]) end
  return {limited, longest, requests - now, budget - now, today}
end
if lives({KEYS[1]}, KEYS[5], ARGV[5]) then
  redis.call('HSET', KEYS[2], 'tokens', whole(next_budget),
    'day', today, 'day_tokens', whole(day_tokens + tokens))
  redis.call('PEXPIRE', KEYS[2], 2 * DAY / 1000)
  for index = 6, #ARGV, 2 do
    keep_stream(KEYS[3], KEYS[4], lease, ARGV[index])
    redis.call('HSET', KEYS[4], ARGV[index], ARGV[index + 1])
  end
  redis.call('PEXPIRE', KEYS[4], DAY / 1000)
end
return {'', 0, requests - now, next_budget - now, today}
"""
)

# KEYS: meta, limits, streams, held, generation, settled. ARGV: request id, tokens used, tokens a
# minute (empty is no limit), the day that its reservation counts to (empty when Redis is not known
# to have it), the generation.
# What was taken here is in `held`; what was not is charged now. Each happens once.
SETTLE = Script(
    _COMMON
    + """
local id, used = ARGV[1], tonumber(ARGV[2])
local limit, day = tonumber(ARGV[3]), tonumber(ARGV[4])
if not lives({KEYS[1]}, KEYS[5], ARGV[5]) then return end
if not day then
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', whole(now - LATE))
  if redis.call('ZADD', KEYS[6], 'NX', whole(now), id) == 0 then return end
  redis.call('PEXPIRE', KEYS[6], LATE / 1000)
end
local taken = tonumber(redis.call('HGET', KEYS[4], id))
end_stream(KEYS[3], id)
redis.call('HDEL', KEYS[4], id)
if day and not taken then return end
taken = taken or 0
local charge = used - taken
local state = redis.call('HMGET', KEYS[2], 'tokens', 'used', 'day', 'day_tokens')
if limit then
  local full_at = tonumber(state[1] or 0)
  local used_until = math.max(tonumber(state[2] or 0), now) + cost(used, limit)
  if charge > 0 then
    full_at = math.max(full_at, now) + cost(used, limit) - cost(taken, limit)
  else
    local held = 0
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], whole(now), '+inf')) do
      held = held + tonumber(redis.call('HGET', KEYS[4], other) or 0)
    end
    local given_back = full_at + cost(used, limit) - cost(taken, limit)
    full_at = math.min(full_at, math.max(given_back, used_until + cost(held, limit)))
  end
  redis.call('HSET', KEYS[2], 'tokens', whole(full_at), 'used', whole(used_until))
end
if tonumber(state[3]) == (day or today) then
  redis.call('HSET', KEYS[2], 'day_tokens', whole(math.max(0, tonumber(state[4]) + charge)))
elseif charge > 0 then
  redis.call('HSET', KEYS[2], 'day', today, 'day_tokens', whole(charge))
end
redis.call('PEXPIRE', KEYS[2], 2 * DAY / 1000)
"""
)

# KEYS: meta, sockets. ARGV: socket id, length of a lease, how many there may be.
OPEN_SOCKET = Script(
    _COMMON
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
RENEW = Script(
    _COMMON
    + """
for index = 2, #ARGV do
  for _, member in ipairs(members(ARGV[index])) do
    redis.call('ZADD', KEYS[1], 'XX', whole(now + tonumber(ARGV[1])), member)
  end
end
"""
)
