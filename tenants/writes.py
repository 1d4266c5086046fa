"""One write of an operator: what must still be so, what is then done, and the audit's line of it.

All of it happens in one script, or nothing does; and whoever keeps copies hears of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from tenants import audit, changes
from tenants.connection import Command, GuardedRedis, Script
from tenants.errors import StoreConflict
from tenants.records import Change

Check = tuple[Command, bytes]
"""A command and the reply that it must give, as bytes; empty is no value."""

T = TypeVar("T")
_MAX_ATTEMPTS = 32

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


class _Guard(NamedTuple):
    check: Check
    mark: Command


_guard: ContextVar[_Guard | None] = ContextVar("guard", default=None)


@contextlib.contextmanager
def guarding(check: Check, mark: Command) -> Iterator[None]:
    """Every commit of this task within the block is made only if `check` holds, and with `mark`."""
    token = _guard.set(_Guard(check, mark))
    try:
        yield
    finally:
        _guard.reset(token)


async def commit_if(
    redis: GuardedRedis, checks: Sequence[Check], commands: Sequence[Command]
) -> bool:
    """Whether the checks held and the commands were run. Raises `StoreUnavailable`."""
    groups = [*((*command, reply) for command, reply in checks), *commands]
    words = [word for group in groups for word in (len(group), *group)]
    return bool(await redis.run_script(_COMMIT, [], [len(checks), *words]))


class Writes:
    """Commits writes to one Redis; the audit stream keeps about `audit_max_entries` of them."""

    def __init__(self, redis: GuardedRedis, audit_max_entries: int) -> None:
        self._redis = redis
        self._audit_max_entries = audit_max_entries

    async def commit(
        self, checks: Sequence[Check], commands: Sequence[Command], change: Change, note: audit.Note
    ) -> bool:
        """Whether the checks held and the commands were run. Raises `StoreUnavailable`."""
        everything = (
            *commands,
            audit.appending(note, self._audit_max_entries),
            changes.publication(change),
        )
        guard = _guard.get()
        if guard is not None:
            checks, everything = [guard.check, *checks], (guard.mark, *everything)
        committed = await commit_if(self._redis, checks, everything)
        if committed:
            self._redis.notify(change)
        return committed


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


async def until_committed(attempt: Callable[[], Awaitable[T | None]]) -> T:
    """Read, think and commit, again while others come in between and `attempt` returns `None`.

    Raises `StoreConflict` when that does not end.
    """
    for _ in range(_MAX_ATTEMPTS):
        done = await attempt()
        if done is not None:
            return done
    raise StoreConflict("others keep changing the same thing; try again")
