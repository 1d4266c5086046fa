"""How much an owner's registered prompts may take: names, versions, and bytes of `stored_bytes`.

What they take stands beside them, so that a prompt more costs no look at the others. A store of an
earlier version has no such books: they are made with the next prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tenants import redis_keys
from tenants.errors import PromptsExceeded
from tenants.storage.commits import Check, field_holds
from tenants.storage.connection import Command, GuardedRedis

MAX_PROMPTS = 1000
"""Names that an owner's prompts have, deleted ones included: their numbers are never used twice."""
MAX_VERSIONS = 1000
_OVERHEAD_BYTES = 512
"""What a version takes besides its text, about."""
TOTAL = ":total"
"""The field for all prompts together: no prompt can be called so."""

MostBytes = Callable[[str], Awaitable[int | None]]
"""How much may be stored of an owner, `None` for no limit."""
Books = tuple[list[Check], list[Command]]
"""What must still be so, and what is written with a prompt."""


async def no_limit(owner: str) -> int | None:  # noqa: ARG001
    """Of whoever's prompts nobody counts the bytes."""
    return None


class _Taken(NamedTuple):
    total: bytes | None
    of_name: bytes | None
    names: int
    is_new: bool
    versions: int


class PromptRoom:
    """The books of all owners' prompts. Raises `StoreUnavailable` while Redis is down."""

    def __init__(self, redis: GuardedRedis, most_bytes: MostBytes = no_limit) -> None:
        self._redis = redis
        self._most_bytes = most_bytes

    async def adding(self, owner: str, name: str, text: str) -> Books:
        """For one version more. Raises `PromptsExceeded`."""
        taken, key = await self._taken(owner, name), redis_keys.prompt_bytes(owner)
        if taken.is_new and taken.names >= MAX_PROMPTS:
            raise PromptsExceeded(f"{owner} has had {MAX_PROMPTS} prompts: no other name is free")
        if taken.versions >= MAX_VERSIONS:
            raise PromptsExceeded(f"prompt {name!r} has {MAX_VERSIONS} versions: delete it first")
        before = await self._counted(owner) if taken.total is None else {}
        size, most = len(text.encode()) + _OVERHEAD_BYTES, await self._most_bytes(owner)
        total = sum(before.values()) if taken.total is None else int(taken.total)
        if most is not None and total + size > most:
            raise PromptsExceeded(
                f"the prompts of {owner} would take {total + size} bytes; its stored_bytes are "
                f"{most}: delete prompts, or have it raised"
            )
        made: list[Command] = [("HSET", key, other, count) for other, count in before.items()]
        grown: list[Command] = [("HINCRBY", key, name, size), ("HSET", key, TOTAL, total + size)]
        return [field_holds(key, TOTAL, taken.total)], [*made, *grown]

    async def removing(self, owner: str, name: str) -> Books:
        """For a prompt that goes with all its versions."""
        taken, key = await self._taken(owner, name), redis_keys.prompt_bytes(owner)
        checks = [field_holds(key, TOTAL, taken.total), field_holds(key, name, taken.of_name)]
        if taken.total is None:
            return checks, []
        left = int(taken.total) - int(taken.of_name or 0)
        return checks, [("HDEL", key, name), ("HSET", key, TOTAL, left)]

    async def _taken(self, owner: str, name: str) -> _Taken:
        key, heads = redis_keys.prompt_bytes(owner), redis_keys.prompts(owner)
        (total, of_name), names, is_there, versions = await self._redis.pipeline(
            ("HMGET", key, TOTAL, name),
            ("HLEN", heads),
            ("HEXISTS", heads, name),
            ("HLEN", redis_keys.prompt(owner, name)),
        )
        return _Taken(total, of_name, int(names), not is_there, int(versions))

    async def _counted(self, owner: str) -> dict[str, int]:
        """What each prompt takes, as it lies there."""
        names = [
            one.decode() for one in await self._redis.execute("HKEYS", redis_keys.prompts(owner))
        ]
        counted = {}
        for name in names:
            texts = await self._redis.execute("HVALS", redis_keys.prompt(owner, name))
            if texts:
                counted[name] = sum(len(text) + _OVERHEAD_BYTES for text in texts)
        return counted
