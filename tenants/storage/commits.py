"""One script that checks what must still be so, and then writes, or writes nothing.

What is written behind an answer may come when its tenant was deleted, and another one made of the
same id. So such a write carries its tenant's generation, and does nothing where that beside the
record is another: Lua cannot read it out of a record.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenants import redis_keys
from tenants.records import ShareGroup, Tenant
from tenants.storage.connection import GuardedRedis, Script
from tenants.storage.servers import Command, key_of

Check = tuple[Command, bytes]
"""A command and the reply that it must give, as bytes; empty is no value."""

# ARGV: how many checks there are, the checks, the commands: each with the number of its words, and
# a check with the expected reply as its last. Nothing is written unless all checks hold.
_COMMIT = Script("""
local at = 2
local function next_words()
  local last = at + tonumber(ARGV[at])
  local words = {unpack(ARGV, at + 1, last)}
  at = last + 1
  return words
end
for _ = 1, tonumber(ARGV[1]) do
  local check = next_words()
  local expected = table.remove(check)
  if tostring(redis.call(unpack(check)) or '') ~= expected then return 0 end
end
while at <= #ARGV do redis.call(unpack(next_words())) end
return 1
""")

ANY = ""
"""The generation of what goes to whoever has the id."""

# `lives(meta, generation, expected)`: whether the owner is there, and the one that is meant. A
# record of an earlier version has no generation beside it; the first write that has one says it.
LIVES = """
local function lives(meta, generation, expected)
  if redis.call('EXISTS', unpack(meta)) == 0 then return false end
  if expected == '' then return true end
  local known = redis.call('GET', generation)
  if not known then redis.call('SET', generation, expected) end
  return not known or known == expected
end
"""


async def commit_if(
    redis: GuardedRedis, checks: Sequence[Check], commands: Sequence[Command]
) -> bool:
    """Whether the checks held and the commands were run. Raises `StoreUnavailable`.

    Their keys are in one slot.
    """
    keys = dict.fromkeys(
        key for command in (*(one for one, _ in checks), *commands) if (key := key_of(command))
    )
    groups = [*((*command, reply) for command, reply in checks), *commands]
    words = [word for group in groups for word in (len(group), *group)]
    return bool(await redis.run_script(_COMMIT, list(keys), [len(checks), *words]))


def holds(key: str, value: bytes | None) -> Check:
    """That a string is what was read, `None` if there was none."""
    return ("GET", key), value or b""


def field_holds(key: str, field: str, value: bytes | None) -> Check:
    """That a hash's field is what was read, `None` if there was none."""
    return ("HGET", key, field), value or b""


def exists(key: str) -> Check:
    """That there is anything under a key."""
    return ("EXISTS", key), b"1"


def absent(key: str) -> Check:
    """That there is nothing under a key."""
    return ("EXISTS", key), b"0"


def keeping(record: Tenant | ShareGroup) -> Command:
    """The command that puts its generation beside a record that is new."""
    return "SET", redis_keys.generation(record.owner), record.generation
