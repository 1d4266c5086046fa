"""The texts of registered prompts, encrypted, and found by keyed hashes of what they say."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tenants import redis_keys
from tenants.at_rest.records import decoded
from tenants.keyring import Keyring, Namespace
from tenants.owners import not_found
from tenants.storage.commits import commit_if, field_holds
from tenants.storage.connection import Command, GuardedRedis


class PromptText(msgspec.Struct, frozen=True):
    """A version as Redis holds it; name and version are where it lies."""

    text: str
    created_at: float
    adapter: str | None = None


class PromptTexts:
    """The versions of all owners' prompts. Raises `StoreUnavailable` while Redis is down."""

    def __init__(self, redis: GuardedRedis, keyring: Keyring) -> None:
        self._redis = redis
        self._keyring = keyring

    async def read(self, owner: str, name: str, version: int) -> PromptText | None:
        """A version, or `None`."""
        return (await self.read_each(owner, [(name, version)]))[0]

    async def read_each(
        self, owner: str, versions: Sequence[tuple[str, int]]
    ) -> list[PromptText | None]:
        """Versions by names and numbers; `None` for those that are not there."""
        blobs = await self._redis.pipeline(
            *(("HGET", redis_keys.prompt(owner, name), version) for name, version in versions)
        )
        return [
            None if blob is None else await self._opened(owner, name, version, blob)
            for (name, version), blob in zip(versions, blobs, strict=True)
        ]

    async def numbers(self, owner: str, name: str) -> list[int]:
        """Which versions of a prompt there are, in no order."""
        fields = await self._redis.execute("HKEYS", redis_keys.prompt(owner, name))
        return [int(one) for one in fields if one.isdigit()]

    async def adding(self, owner: str, name: str, version: int, text: PromptText) -> list[Command]:
        """What writes a version. Raises `TenantNotFound`, `GroupNotFound`."""
        namespace = await self._namespace(owner)
        place = redis_keys.prompt(owner, name)
        sealed = namespace.sealer.seal(msgspec.msgpack.encode(text), place, str(version))
        return [
            ("HSET", place, version, sealed),
            ("SADD", namespace.text_keys(text.text)[0], f"{name}:{version}"),
        ]

    async def removing(self, owner: str, name: str) -> list[Command]:
        """What removes all versions of a prompt. Raises `TenantNotFound`, `GroupNotFound`."""
        versions = [(name, number) for number in await self.numbers(owner, name)]
        texts = await self.read_each(owner, versions)
        namespace = await self._namespace(owner)
        removed: list[Command] = [("DEL", redis_keys.prompt(owner, name))]
        for (_, number), text in zip(versions, texts, strict=True):
            keys = [] if text is None else namespace.text_keys(text.text)
            removed += [("SREM", key, f"{name}:{number}") for key in keys]
        return removed

    async def with_text(self, owner: str, text: str) -> list[tuple[str, int]]:
        """Names and numbers of the versions that may have this text, in order."""
        namespace = await self._keyring.of(owner)
        keys = [] if namespace is None else namespace.text_keys(text)
        found: list[set[bytes]] = await self._redis.pipeline(*(("SMEMBERS", key) for key in keys))
        parts = (one.decode().rpartition(":") for one in sorted(set().union(*found)))
        return [(name, int(version)) for name, _, version in parts if version.isdecimal()]

    async def rewrite(self, owner: str, name: str) -> tuple[int, int]:
        """Encrypt again what is not under the owner's newest secret; how many versions were.

        The second number is of those that cannot be read.
        """
        place, rewritten, unreadable = redis_keys.prompt(owner, name), 0, 0
        for number in await self.numbers(owner, name):
            blob = await self._redis.execute("HGET", place, number)
            namespace = await self._keyring.of(owner)
            if blob is None or namespace is None or namespace.sealer.is_newest(blob):
                continue
            text = await self._opened(owner, name, number, blob)
            if text is None:
                unreadable += 1
                continue
            former = namespace.text_keys(text.text)[1:]
            rewritten += await commit_if(
                self._redis,
                [field_holds(place, str(number), blob)],
                [
                    *(("SREM", key, f"{name}:{number}") for key in former),
                    *await self.adding(owner, name, number, text),
                ],
            )
        return rewritten, unreadable

    async def _opened(self, owner: str, name: str, version: int, blob: bytes) -> PromptText | None:
        place = redis_keys.prompt(owner, name)
        content = await self._keyring.open(owner, blob, place, str(version))
        return None if content is None else decoded(content, PromptText, f"{place} {version}")

    async def _namespace(self, owner: str) -> Namespace:
        namespace = await self._keyring.of(owner)
        if namespace is None:
            raise not_found(owner)
        return namespace
