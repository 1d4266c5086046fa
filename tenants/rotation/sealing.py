"""Seals what versions before this left in clear: once, and only because an operator says so.

Whoever could write to Redis until then could have put anything there in clear. So no record says
whether clear ones are taken: nothing else here reads them, whatever stands in the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.at_rest.records import SealedRecords, decoded
from tenants.at_rest.sealer import OVERHEAD_BYTES, Sealer, is_sealed
from tenants.errors import SealError
from tenants.keyring import HEADS, Keyring, compact_log, rewrite
from tenants.keys.operator_tokens import OperatorTokens
from tenants.prompts.texts import PromptText, PromptTexts
from tenants.records import ApiKey, ShareGroup, Tenant
from tenants.storage import schema
from tenants.storage.commits import commit_if, field_holds, holds
from tenants.storage.connection import GuardedRedis

_SCAN_COUNT = 500
_OWNERS = frozenset({"meta", "deleting"})


class Clear(NamedTuple):
    """A record that is not sealed."""

    key: str
    field: str | None = None
    """Of a hash."""

    def __str__(self) -> str:
        return self.key if self.field is None else f"{self.key} {self.field}"


class Sealed(msgspec.Struct, kw_only=True):
    """How many records were sealed, and which were left, as nothing could be made of them."""

    sealed: int = 0
    left: list[str] = []


class Sealing:
    """Over one Redis that no service uses meanwhile. Raises `StoreUnavailable`."""

    def __init__(self, redis: GuardedRedis, peppers: Peppers, keyring: Keyring) -> None:
        self._redis = redis
        self._keyring = keyring
        self._records = SealedRecords(peppers)
        self._wrapped = Sealer("namespace secrets", *peppers.all)
        """Of the secrets within records that were in clear but for these."""
        self._texts = PromptTexts(redis, keyring)
        self._tokens = OperatorTokens(redis, peppers)

    async def in_clear(self) -> list[Clear]:
        """Every record that is to be sealed; tenants and groups, which seal the others, first."""
        found = [one async for one in self._found()]
        return sorted(found, key=lambda one: (_kind(one.key) not in _OWNERS, one))

    async def run(self, found: Sequence[Clear]) -> Sealed:
        """Seal what `in_clear` has found, as it is. Ended at any point, another run goes on."""
        done = Sealed()
        for one in found:
            if await self._seal(one):
                done.sealed += 1
            else:
                done.left.append(str(one))
        await schema.mark(self._redis)
        if done.sealed:
            await compact_log(self._redis)
        return done

    async def _found(self) -> AsyncIterator[Clear]:
        seen: set[str] = set()
        async for names in self._redis.scan(redis_keys.EVERY_OWNERS, _SCAN_COUNT):
            page = {name.decode(errors="replace") for name in names} - seen
            seen |= page
            known = sorted(filter(redis_keys.type_of, page))
            for key in await self._strings_in_clear([one for one in known if _is_string(one)]):
                yield Clear(key)
            for key in known:
                for field in await self._fields_in_clear(key):
                    yield Clear(key, field)

    async def _strings_in_clear(self, keys: Sequence[str]) -> list[str]:
        starts = await self._redis.pipeline(
            *(
                ("GETRANGE", key, head, head + OVERHEAD_BYTES - 1)
                for key in keys
                for head in [HEADS.get(_kind(key), 0)]
            )
        )
        return [key for key, start in zip(keys, starts, strict=True) if not is_sealed(start)]

    async def _fields_in_clear(self, key: str) -> list[str]:
        if key == redis_keys.OPERATOR_TOKENS:
            return await self._tokens.without_generation()
        if _kind(key) != "prompt":
            return []
        fields = await self._redis.execute("HGETALL", key)
        return [name.decode() for name, blob in fields.items() if not is_sealed(blob)]

    async def _seal(self, one: Clear) -> bool:
        """Whether a record is sealed now."""
        owner, kind, _ = redis_keys.owner_kind_name(one.key)
        if one.field is not None and kind == "prompt":
            return await self._seal_text(owner, one.key, one.field)
        if one.field is not None:
            return await self._tokens.hold_to_generation(one.field)
        seals: dict[str, Callable[[str, str], Awaitable[bool]]] = {
            **dict.fromkeys(_OWNERS, self._seal_owner),
            "keys": self._seal_keys,
        }
        return await seals.get(kind, self._seal_string)(owner, one.key)

    async def _seal_owner(self, owner: str, key: str) -> bool:
        blob = await self._redis.execute("GET", key)
        kind: type[Tenant | ShareGroup] = ShareGroup if owner.startswith("@") else Tenant
        record = decoded(blob, kind, key)
        if record is None or record.owner != owner:
            return False
        try:
            unwrapped = replace(
                record,
                namespace_secret=self._unwrapped(record.namespace_secret, owner),
                former_secrets=tuple(
                    replace(one, secret=self._unwrapped(one.secret, owner))
                    for one in record.former_secrets
                ),
            )
        except SealError:
            return False
        return await self._put(key, blob, self._records.encode(unwrapped))

    def _unwrapped(self, secret: bytes, owner: str) -> bytes:
        """A secret; even before they were wrapped there were tenants."""
        return self._wrapped.open(secret, owner) if is_sealed(secret) else secret

    async def _seal_keys(self, owner: str, key: str) -> bool:
        meta, blob = await self._redis.execute("MGET", redis_keys.meta(owner), key)
        keys = decoded(blob, list[ApiKey], key)
        if meta is None or keys is None or any(one.tenant_id != owner for one in keys):
            return False
        try:
            tenant = self._records.tenant(owner, meta)
        except SealError:
            return False
        return await self._put(key, blob, self._records.encode_keys(tenant, keys))

    async def _seal_text(self, owner: str, key: str, version: str) -> bool:
        blob = await self._redis.execute("HGET", key, version)
        text = decoded(blob, PromptText, f"{key} {version}")
        if text is None or not version.isdecimal() or await self._keyring.of(owner) is None:
            return False
        _, _, name = redis_keys.owner_kind_name(key)
        assert name is not None
        plain = redis_keys.prompt_text(owner, sha256(text.text.encode()).digest())
        return await commit_if(
            self._redis,
            [field_holds(key, version, blob)],
            [
                ("SREM", plain, f"{name}:{version}"),
                *await self._texts.adding(owner, name, int(version), text),
            ],
        )

    async def _seal_string(self, owner: str, key: str) -> bool:
        blob, head_bytes = await self._redis.execute("GET", key), HEADS[_kind(key)]
        head, content = blob[:head_bytes], blob[head_bytes:]
        return await rewrite(self._redis, self._keyring, owner, key, head, content, content)

    async def _put(self, key: str, blob: bytes, sealed: bytes) -> bool:
        return await commit_if(self._redis, [holds(key, blob)], [("SET", key, sealed)])


def _is_string(key: str) -> bool:
    kind = _kind(key)
    return kind in _OWNERS or kind == "keys" or kind in HEADS


def _kind(key: str) -> str:
    return redis_keys.owner_kind_name(key)[1]
