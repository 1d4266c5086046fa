"""Messages that are to be told to somebody outside, kept in Redis until they are: a bounded queue.

Whichever process takes a message tries to deliver it; it comes up again, each time later, until
somebody says that it was delivered or it was tried often enough. A process that dies in between
loses nothing.
"""

from __future__ import annotations

import logging
import re

import msgspec

from tenants import redis_keys
from tenants.storage.connection import Argument, GuardedRedis, Script

_log = logging.getLogger(__name__)
MAX_MESSAGES = 10_000
MAX_ATTEMPTS = 8
RETRY_SECONDS = 15.0
"""Until the second attempt, longer than one takes; four times as long until each further one."""
_GROWTH = 4
_ATTEMPTS = ":attempts"
_ID = re.compile(rb"[!-~]{1,512}")
"""What goes into a header as it is."""

# KEYS: due, messages. ARGV: id, body, most messages. Gives whether there was room; what is there
# already stays as it is.
_PUT = Script("""
local time = redis.call('TIME')
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 1 end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[1], time[1] * 1000, ARGV[1])
return 1
""")

# KEYS: due, messages. ARGV: milliseconds until the second attempt, growth, most attempts, suffix of
# counts. Gives the message that is due, if any, and whether it was tried for the last time before.
_TAKE = Script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1)[1]
if not id then return nil end
local body = redis.call('HGET', KEYS[2], id)
local attempt = (tonumber(redis.call('HGET', KEYS[2], id .. ARGV[4]) or 0) or 0) + 1
redis.call('HSET', KEYS[2], id .. ARGV[4], attempt)
if not body or attempt > tonumber(ARGV[3]) then
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id, id .. ARGV[4])
  return {id, body or '', attempt}
end
local wait = tonumber(ARGV[1]) * tonumber(ARGV[2]) ^ (attempt - 1)
redis.call('ZADD', KEYS[1], string.format('%.0f', now + wait), id)
return {id, body, attempt}
""")


class Message(msgspec.Struct, frozen=True):
    """A message, and how often it has been taken."""

    id: str
    body: bytes
    attempt: int


class Outbox:
    """The queue of all processes on one Redis. All methods raise `StoreUnavailable`."""

    def __init__(
        self,
        redis: GuardedRedis,
        *,
        retry_seconds: float = RETRY_SECONDS,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        self._redis = redis
        self._retry_seconds = retry_seconds
        self._max_messages = max_messages
        self._keys = [redis_keys.OUTBOX_DUE, redis_keys.OUTBOX_MESSAGES]

    async def put(self, message_id: str, body: bytes) -> bool:
        """Keep a message until it is delivered; the same id is the same message.

        Returns whether there was room.
        """
        arguments: list[Argument] = [message_id, body, self._max_messages]
        has_room = bool(await self._redis.run_script(_PUT, self._keys, arguments))
        if not has_room:
            _log.error("the outbox is full: %s is not told", message_id)
        return has_room

    async def take(self) -> Message | None:
        """The message that is due, if any; it will be due again unless it is `done`."""
        wait = int(self._retry_seconds * 1000)
        arguments: list[Argument] = [wait, _GROWTH, MAX_ATTEMPTS, _ATTEMPTS]
        while True:
            reply = await self._redis.run_script(_TAKE, self._keys, arguments)
            if reply is None:
                return None
            if not _ID.fullmatch(reply[0]):
                _log.error("%r is no message of a Partywall's", reply[0])
                await self.done(reply[0])
                continue
            message = Message(reply[0].decode(), reply[1], reply[2])
            if message.attempt <= MAX_ATTEMPTS and message.body:
                return message
            _log.error("%s is given up after %d attempts", message.id, MAX_ATTEMPTS)

    async def done(self, message_id: str | bytes) -> None:
        """Forget a message: it was delivered, or will never be."""
        name = message_id if isinstance(message_id, bytes) else message_id.encode()
        await self._redis.transaction(
            ("ZREM", redis_keys.OUTBOX_DUE, name),
            ("HDEL", redis_keys.OUTBOX_MESSAGES, name, name + _ATTEMPTS.encode()),
        )
