"""Which of several tenants of one id a late write is meant for: the one that was there before it.

What is written behind an answer may come when its tenant was deleted, and another one made of the
same id. So each carries its tenant's generation, which stands beside the record, and is nothing
where that is of another. Lua cannot read it out of a record.
"""

from __future__ import annotations

from tenants import redis_keys
from tenants.records import ShareGroup, Tenant
from tenants.storage.servers import Command

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


def keeping(record: Tenant | ShareGroup) -> Command:
    """The command that puts it beside a record that is new."""
    return "SET", redis_keys.generation(record.owner), record.generation
