"""Rewrites what older peppers and namespace secrets protect, while services run.

Everything is read through the store's own doors and put back only where nobody has changed it, one
key after the other. Whatever ends this, another run goes on: what is new already is only looked at.
"""

from __future__ import annotations

import contextlib
import time

import msgspec
from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest import pepper_record
from tenants.at_rest.pepper import Peppers, pepper_id
from tenants.at_rest.records import SealedRecords
from tenants.at_rest.sealer import HEAD_BYTES
from tenants.errors import SealBroken, TenantNotFound
from tenants.keyring import HEADS, Keyring, compact_log, rewrite
from tenants.keys.operator_tokens import OperatorTokens
from tenants.prompts.system_prompts import SystemPrompts
from tenants.storage.commits import commit_if, holds
from tenants.storage.connection import GuardedRedis
from tenants.store import TenantStore

SETTLE_SECONDS = 60.0
"""By then no service uses a former namespace secret for anything new."""
_SCAN_COUNT = 500
_PAGE = 100


class Left(msgspec.Struct, kw_only=True):
    """What a run has done, and what is left to do.

    `api_keys` are the live ones (`TENANT/KEY`) that are hashed with a former pepper: each is hashed
    anew when it is used. `former_secrets` are owners whose former secrets have not been dropped,
    since they were replaced within the last minute. `unreadable` are keys of Redis that hold what
    no known secret opens. `peppers` says how many former ones the store still uses.
    """

    rewritten: int = 0
    api_keys: list[str] = []
    former_secrets: list[str] = []
    unreadable: list[str] = []
    peppers: int = 0


class Rotation:
    """Raises `StoreUnavailable` while Redis is down, and `PepperMismatch`."""

    def __init__(
        self,
        redis: GuardedRedis,
        peppers: Peppers,
        keyring: Keyring,
        tenants: TenantStore,
        prompts: SystemPrompts,
    ) -> None:
        self._redis = redis
        self._peppers = peppers
        self._keyring = keyring
        self._tenants = tenants
        self._prompts = prompts
        self._records = SealedRecords(peppers)
        self._operator_tokens = OperatorTokens(redis, peppers)

    async def run(self) -> Left:
        """Have all of the store be under our pepper and the newest secrets, as far as it can be."""
        begun, left = time.time(), Left()
        await pepper_record.lead(self._redis, self._peppers)
        with_former: list[str] = []
        async for names in self._redis.scan(redis_keys.EVERY_OWNERS, _SCAN_COUNT):
            with_former += await self._rewrite_all(
                [name.decode(errors="replace") for name in names], left
            )
        for owner in sorted(set(with_former)):
            if not await self._drop_former(owner, begun - SETTLE_SECONDS):
                left.former_secrets.append(owner)
        left.api_keys = await self._keys_of_former_peppers()
        if not left.api_keys:
            await pepper_record.settle(self._redis, self._peppers)
        left.peppers = len(await pepper_record.in_use(self._redis)) - 1
        if left.rewritten:
            await compact_log(self._redis)
        return left

    async def _rewrite_all(self, keys: list[str], left: Left) -> list[str]:
        """Rewrite what needs it of these keys; owners that have former secrets."""
        with_former: list[str] = []
        strings: list[tuple[str, str, int]] = []
        for key in filter(redis_keys.type_of, keys):
            owner, kind, name = redis_keys.owner_kind_name(key)
            if kind in HEADS:
                strings.append((owner, key, HEADS[kind]))
            elif kind == "prompt" and name is not None:
                rewritten, unreadable = await self._prompts.rewrite(owner, name)
                left.rewritten += rewritten
                left.unreadable += [key] if unreadable else []
            elif key == redis_keys.OPERATOR_TOKENS:
                rewritten, broken = await self._operator_tokens.rewrite()
                left.rewritten += rewritten
                left.unreadable += [f"{key} {token_id}" for token_id in broken]
            elif kind == "keys":
                await self._reseal_keys(owner, left)
            elif kind == "meta" and await self._reseal(owner, left):
                with_former.append(owner)
        await self._rewrite_strings(strings, left)
        return with_former

    async def _reseal_keys(self, tenant_id: str, left: Left) -> None:
        """Have our pepper seal a tenant's list of keys."""
        key = redis_keys.keys(tenant_id)
        meta, blob = await self._redis.execute("MGET", redis_keys.meta(tenant_id), key)
        if meta is None or blob is None or self._records.is_current(blob):
            return
        try:
            tenant = self._records.tenant(tenant_id, meta)
            keys = self._records.keys(tenant, blob)
        except SealBroken:
            left.unreadable.append(key)
            return
        commands = [("SET", key, self._records.encode_keys(tenant, keys))]
        left.rewritten += await commit_if(self._redis, [holds(key, blob)], commands)

    async def _reseal(self, owner: str, left: Left) -> bool:
        """Have our pepper seal an owner's record; whether there are former secrets in it."""
        key = redis_keys.meta(owner)
        blob = await self._redis.execute("GET", key)
        if blob is None:
            return False
        try:
            record = self._records.of_owner(owner, blob)
        except SealBroken:
            left.unreadable.append(key)
            return False
        if not self._records.is_current(blob):
            commands = [("SET", key, self._records.encode(record))]
            left.rewritten += await commit_if(self._redis, [holds(key, blob)], commands)
        return bool(record.former_secrets)

    async def _rewrite_strings(self, strings: list[tuple[str, str, int]], left: Left) -> None:
        """Rewrite those of owner, key and length of its head that need it."""
        starts = await self._redis.pipeline(
            *(("GETRANGE", key, head, head + HEAD_BYTES - 1) for _, key, head in strings)
        )
        for (owner, key, head_bytes), start in zip(strings, starts, strict=True):
            namespace = await self._keyring.of(owner)
            if namespace is None or namespace.sealer.is_newest(start):
                continue
            blob = await self._redis.execute("GET", key)
            if blob is None:
                continue
            head, record = blob[:head_bytes], blob[head_bytes:]
            content = await self._keyring.open(owner, record, key)
            if content is None:
                left.unreadable.append(key)
                continue
            left.rewritten += await rewrite(
                self._redis, self._keyring, owner, key, head, record, content
            )

    async def _drop_former(self, owner: str, before: float) -> bool:
        """Let go of secrets that were replaced before a time; whether none is left."""
        key = redis_keys.meta(owner)
        blob = await self._redis.execute("GET", key)
        if blob is None:
            return True
        record = self._records.of_owner(owner, blob)
        kept = tuple(one for one in record.former_secrets if one.replaced_at >= before)
        changed = replace(record, former_secrets=kept)
        commands = [("SET", key, self._records.encode(changed))]
        return await commit_if(self._redis, [holds(key, blob)], commands) and not kept

    async def _keys_of_former_peppers(self) -> list[str]:
        """Live API keys that our pepper does not hash yet."""
        used = await pepper_record.in_use(self._redis)
        # Versions that did not say which pepper it was knew the oldest one only.
        newest, oldest = pepper_id(used[0]), pepper_id(used[-1])
        found: list[str] = []
        after: str | None = None
        while tenants := await self._tenants.list_tenants(after, _PAGE):
            for tenant in tenants:
                with contextlib.suppress(TenantNotFound):
                    found += [
                        f"{tenant.id}/{key.id}"
                        for key in await self._tenants.list_keys(tenant.id)
                        if key.is_live(time.time()) and (key.pepper_id or oldest) != newest
                    ]
            after = tenants[-1].id
        return found
