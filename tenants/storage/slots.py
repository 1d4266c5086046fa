"""Writes whose keys lie in several slots of a Redis Cluster, where no script reaches all of them.

The owner's slot decides: in one script there, what must still be so is checked, what belongs there
is written, and what remains to be done elsewhere is noted. Then that is done, a script a slot. What
must be so elsewhere is checked before, together with what is written there.

- Who is cut off after the decision leaves its note. The next write of the same owner does the rest,
  and so does every service that starts. Each step marks that it was taken, for a day: it is taken
  once, whoever takes it.
- Who is cut off before leaves what was written elsewhere: a tenant is listed as a member of a share
  group to which it does not belong, or an idempotency key says that its write was made.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tenants import redis_keys
from tenants.errors import StoreUnavailable
from tenants.storage.commits import Check, absent, commit_if
from tenants.storage.connection import GuardedRedis
from tenants.storage.servers import Argument, Command, key_of

_STEP_SECONDS: Final = 24 * 3600
_UNDER_WAY_SECONDS: Final = 60.0
"""After so long nobody is between announcing a write and its decision any more."""

_log = logging.getLogger(__name__)
_Steps = list[list[Command]]


async def commit(redis: GuardedRedis, checks: Sequence[Check], commands: Sequence[Command]) -> bool:
    """Whether the checks held and the commands were run. Raises `StoreUnavailable`.

    The first check is of a key of the owner. Commands without a key come last.
    """
    if not redis.is_cluster:
        return await commit_if(redis, checks, commands)
    owner, _, _ = redis_keys.owner_kind_name(str(checks[0][0][1]))
    await finish(redis, owner)
    deciding = _slot(redis, checks[0][0])
    checks_of: dict[int | None, list[Check]] = {}
    for check in checks:
        checks_of.setdefault(_slot(redis, check[0]), []).append(check)
    steps: dict[int | None, list[Command]] = {}
    for command in commands:
        steps.setdefault(_slot(redis, command), []).append(command)
    steps[None] = steps.pop(None, [])
    for slot in checks_of.keys() - {deciding}:
        if not await commit_if(redis, checks_of[slot], steps.pop(slot, [])):
            return False
    decision = steps.pop(deciding, [])
    return await _decide(redis, owner, checks_of[deciding], decision, steps)


async def finish(redis: GuardedRedis, owner: str) -> None:
    """Do the rest of all writes of an owner that were decided. Raises `StoreUnavailable`."""
    if not redis.is_cluster:
        return
    noted = await redis.execute("HGETALL", redis_keys.unfinished(owner))
    for write_id, steps in sorted(noted.items()):
        await _finish(redis, owner, write_id.decode(), _decode(steps))


async def finish_all(redis: GuardedRedis) -> None:
    """Do the rest of all writes that were decided, where Redis can be reached."""
    if not redis.is_cluster:
        return
    before = time.time() - _UNDER_WAY_SECONDS
    try:
        announced = await redis.execute("ZRANGE", redis_keys.UNFINISHED, 0, -1)
        for owner in dict.fromkeys(one.decode().partition(" ")[0] for one in announced):
            await finish(redis, owner)
        # What is announced still was never decided.
        await redis.execute("ZREMRANGEBYSCORE", redis_keys.UNFINISHED, "-inf", before)
    except StoreUnavailable as error:
        _log.warning("writes that were cut off are not finished: %s", error)


async def _decide(
    redis: GuardedRedis,
    owner: str,
    checks: Sequence[Check],
    commands: Sequence[Command],
    later: Mapping[int | None, list[Command]],
) -> bool:
    now = time.time()
    write_id = f"{int(now * 1e6):020}-{secrets.token_hex(8)}"
    member = _member(owner, write_id)
    await redis.execute("ZADD", redis_keys.UNFINISHED, now, member)
    steps = list(later.values())
    note = ("HSET", redis_keys.unfinished(owner), write_id, msgspec.msgpack.encode(steps))
    if not await commit_if(redis, checks, [*commands, note]):
        await redis.execute("ZREM", redis_keys.UNFINISHED, member)
        return False
    await _finish(redis, owner, write_id, steps)
    return True


async def _finish(redis: GuardedRedis, owner: str, write_id: str, steps: _Steps) -> None:
    for commands in steps:
        key = key_of(commands[0]) if commands else None
        if key is None:
            for command in commands:
                await redis.execute(*command)
        else:
            mark = redis_keys.step(key, write_id)
            taken: Command = ("SET", mark, 1, "EX", _STEP_SECONDS)
            await commit_if(redis, [absent(mark)], [taken, *commands])
    await redis.execute("HDEL", redis_keys.unfinished(owner), write_id)
    await redis.execute("ZREM", redis_keys.UNFINISHED, _member(owner, write_id))


def _decode(noted: bytes) -> _Steps:
    steps: list[list[list[Argument]]] = msgspec.msgpack.decode(noted)
    return [[tuple(command) for command in commands] for commands in steps]


def _member(owner: str, write_id: str) -> str:
    return f"{owner} {write_id}"


def _slot(redis: GuardedRedis, command: Command) -> int | None:
    key = key_of(command)
    return None if key is None else redis.slot_of(key)
