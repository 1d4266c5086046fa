"""One write of an operator: what must still be so, what is then done, and the audit's line of it.

All of it happens in one script, or nothing does, but for a Redis Cluster (see
`tenants.storage.slots`); and whoever keeps copies hears of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from tenants.errors import StoreConflict
from tenants.records import Change
from tenants.storage import changes, slots
from tenants.storage.commits import Check, commit_if
from tenants.storage.connection import Command, GuardedRedis
from tenants.writes import audit

T = TypeVar("T")
_MAX_ATTEMPTS = 32


class _Guard(NamedTuple):
    check: Check
    mark: Command
    unmark: Command


_guard: ContextVar[_Guard | None] = ContextVar("guard", default=None)


@contextlib.contextmanager
def guarding(check: Check, mark: Command, unmark: Command) -> Iterator[None]:
    """Every commit of this task within the block is made only if `check` holds, and with `mark`.

    In a Redis Cluster this comes before the commit, and `unmark` behind one that came to nothing.
    """
    token = _guard.set(_Guard(check, mark, unmark))
    try:
        yield
    finally:
        _guard.reset(token)


class Writes:
    """Commits writes to one Redis; the audit stream keeps about `audit_max_entries` of them."""

    def __init__(self, redis: GuardedRedis, audit_max_entries: int) -> None:
        self._redis = redis
        self._audit_max_entries = audit_max_entries

    async def commit(
        self,
        checks: Sequence[Check],
        commands: Sequence[Command],
        change: Change | None,
        note: audit.Note,
    ) -> bool:
        """Whether the checks held and the commands were run. Raises `StoreUnavailable`.

        Without a `change`, it is of what nobody keeps a copy.
        """
        everything = [*commands, audit.appending(note, self._audit_max_entries)]
        if change is not None:
            everything.append(changes.publication(change))
        committed = await self._guarded(checks, everything)
        if committed and change is not None:
            self._redis.notify(change)
        return committed

    async def _guarded(self, checks: Sequence[Check], commands: Sequence[Command]) -> bool:
        guard = _guard.get()
        if guard is None:
            return await slots.commit(self._redis, checks, commands)
        if not self._redis.is_cluster:
            return await commit_if(self._redis, [guard.check, *checks], [guard.mark, *commands])
        if not await commit_if(self._redis, [guard.check], [guard.mark]):
            return False
        committed = await slots.commit(self._redis, checks, commands)
        if not committed:
            await commit_if(self._redis, [guard.check], [guard.unmark])
        return committed


async def until_committed(attempt: Callable[[], Awaitable[T | None]]) -> T:
    """Read, think and commit, again while others come in between: `attempt` is `None` or `False`.

    Raises `StoreConflict` when that does not end.
    """
    for _ in range(_MAX_ATTEMPTS):
        done = await attempt()
        if done is not None and done is not False:
            return done
    raise StoreConflict("others keep changing the same thing; try again")
