"""Tokens of operators: made and revoked while services run, looked up by each of their requests.

A token is `pwadmin_<id>.<secret>`. The store has its record, with a digest of the token, sealed
under the pepper: who writes to Redis without that makes no token, and none into more than it is.
Nothing is kept in memory, so that a token that is revoked opens nothing any more.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import hmac
import logging
import re
import secrets
import time
from typing import Final

import msgspec
from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest import pepper_record
from tenants.at_rest.pepper import Peppers
from tenants.at_rest.records import SealedRecords, unless_altered
from tenants.at_rest.sealer import Sealer
from tenants.errors import InvalidField, SealError, StoreConflict, TokenNotFound
from tenants.records import OperatorToken, TokenRole, check_expiry, check_name, is_id
from tenants.storage.commits import Check, commit_if, field_holds
from tenants.storage.connection import GuardedRedis
from tenants.writes import audit
from tenants.writes.writes import Writes, until_committed

MAX_TOKENS: Final = 256
"""How many may be valid at once."""
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(r"pwadmin_([0-9a-f]{16})\.[A-Za-z0-9_-]{43}")
_log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(OperatorToken)


class OperatorTokens:
    """Tokens over one Redis. All methods raise `StoreUnavailable` while it is down."""

    def __init__(
        self, redis: GuardedRedis, peppers: Peppers, *, audit_max_entries: int = audit.MAX_ENTRIES
    ) -> None:
        self._redis = redis
        self._peppers = peppers
        self._sealer = Sealer("operator tokens", *peppers.all)
        self._records = SealedRecords(peppers)
        self._writes = Writes(redis, audit_max_entries)

    async def create(
        self,
        name: str,
        role: TokenRole = "admin",
        tenant_id: str | None = None,
        *,
        expires_at: float | None = None,
        actor: str = "system",
    ) -> tuple[OperatorToken, str]:
        """A new token: its record, and the token itself, which nobody can read again.

        Raises `InvalidField` ("name", "tenant", "expires_at"), `PepperMismatch`, and
        `StoreConflict` where there are `MAX_TOKENS`. Those that have expired fall out.
        """
        check_name(name)
        check_expiry(expires_at)
        held_to = None if tenant_id is None else await self._generation(tenant_id)
        if tenant_id is not None and held_to is None:
            raise InvalidField("tenant", "the id of a tenant that is there")
        await pepper_record.join(self._redis, self._peppers)
        token_id = secrets.token_hex(_ID_BYTES)
        token = f"pwadmin_{token_id}.{secrets.token_urlsafe(_SECRET_BYTES)}"
        record = OperatorToken(
            id=token_id,
            name=name,
            role=role,
            tenant=tenant_id,
            created_at=time.time(),
            expires_at=expires_at,
            digest=token_digest(token),
            generation=held_to,
        )
        await until_committed(lambda: self._add(record, actor))
        return record, token

    async def list(self) -> builtins.list[OperatorToken]:
        """All of them, the newest first; with those that expired since the last was made."""
        found = (await self._read()).values()
        return sorted(filter(None, found), key=lambda one: one.created_at, reverse=True)

    async def find(self, token: str) -> OperatorToken | None:
        """The record of a token that may be used now, and whose tenant, if any, is still there."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        blob = await self._redis.execute("HGET", redis_keys.OPERATOR_TOKENS, match[1])
        record = None if blob is None else self._opened(match[1], blob)
        if record is None or not record.is_live(time.time()):
            return None
        if not hmac.compare_digest(record.digest, token_digest(token)):
            return None
        return record if await self._is_of_its_tenant(record) else None

    async def revoke(self, token_id: str, *, actor: str = "system") -> None:
        """End a token at once. Raises `TokenNotFound`."""

        async def attempt() -> bool:
            blob = await self._redis.execute("HGET", redis_keys.OPERATOR_TOKENS, token_id)
            if blob is None:
                raise TokenNotFound(token_id)
            record = self._opened(token_id, blob)
            return await self._writes.commit(
                [field_holds(redis_keys.OPERATOR_TOKENS, token_id, blob)],
                [("HDEL", redis_keys.OPERATOR_TOKENS, token_id)],
                None,
                audit.note("token.revoke", actor, "", record, None, token_id),
            )

        await until_committed(attempt)

    async def revoke_of(self, tenant_id: str, *, actor: str = "system") -> None:
        """End all tokens that are held to a tenant."""
        for record in await self.list():
            if record.tenant == tenant_id:
                with contextlib.suppress(TokenNotFound):
                    await self.revoke(record.id, actor=actor)

    async def rewrite(self) -> tuple[int, builtins.list[str]]:
        """Have our pepper seal all of them: how many were not so yet, and ids that nobody reads."""
        rewritten, unreadable = 0, []
        held = await self._redis.execute("HGETALL", redis_keys.OPERATOR_TOKENS)
        for name, blob in held.items():
            token_id = name.decode()
            record = self._opened(token_id, blob)
            if record is None:
                unreadable.append(token_id)
            elif not self._sealer.is_newest(blob):
                key = redis_keys.OPERATOR_TOKENS
                rewritten += await commit_if(
                    self._redis,
                    [field_holds(key, token_id, blob)],
                    [("HSET", key, token_id, self._sealed(record))],
                )
        return rewritten, unreadable

    async def without_generation(self) -> builtins.list[str]:
        """Ids of those that versions before this held to a tenant's id alone: they open nothing."""
        held = await self._read()
        return [one.id for one in held.values() if one and one.tenant and one.generation is None]

    async def hold_to_generation(self, token_id: str) -> bool:
        """Have such a token hold to the tenant that has the id now; whether it does."""
        key = redis_keys.OPERATOR_TOKENS
        blob = await self._redis.execute("HGET", key, token_id)
        record = None if blob is None else self._opened(token_id, blob)
        if record is None or record.tenant is None:
            return False
        held = replace(record, generation=await self._generation(record.tenant))
        return held.generation is not None and await commit_if(
            self._redis,
            [field_holds(key, token_id, blob)],
            [("HSET", key, token_id, self._sealed(held))],
        )

    async def _is_of_its_tenant(self, record: OperatorToken) -> bool:
        """Whether the tenant that a token is held to, if any, is the one that it was made for."""
        if record.tenant is None:
            return True
        there = await self._generation(record.tenant)
        return there is not None and there == record.generation

    async def _generation(self, tenant_id: str) -> str | None:
        """That of the tenant of this id; `None` where none is there, or its record was altered."""
        if not is_id(tenant_id):
            return None
        blob = await self._redis.execute("GET", redis_keys.meta(tenant_id))
        tenant = unless_altered(self._records.tenant, tenant_id, blob)
        return None if tenant is None else tenant.generation

    async def _add(self, record: OperatorToken, actor: str) -> bool:
        """Put a record among the others, unless somebody has come in between; whether it is."""
        held, now = await self._read(), time.time()
        dead = [one for one, found in held.items() if found and not found.is_live(now)]
        if len(held) - len(dead) >= MAX_TOKENS:
            raise StoreConflict(f"there may be {MAX_TOKENS} admin tokens")
        key = redis_keys.OPERATOR_TOKENS
        as_many: Check = (("HLEN", key), str(len(held)).encode())
        return await self._writes.commit(
            [as_many],
            [*(("HDEL", key, one) for one in dead), ("HSET", key, record.id, self._sealed(record))],
            None,
            audit.note("token.create", actor, "", None, record, record.id),
        )

    async def _read(self) -> dict[str, OperatorToken | None]:
        held = await self._redis.execute("HGETALL", redis_keys.OPERATOR_TOKENS)
        return {name.decode(): self._opened(name.decode(), blob) for name, blob in held.items()}

    def _sealed(self, record: OperatorToken) -> bytes:
        content = msgspec.msgpack.encode(record)
        return self._sealer.seal(content, redis_keys.OPERATOR_TOKENS, record.id)

    def _opened(self, token_id: str, blob: bytes) -> OperatorToken | None:
        """A record; `None` for one that was not written here, or not under a pepper we know."""
        place = (redis_keys.OPERATOR_TOKENS, token_id)
        try:
            return _decoder.decode(self._sealer.open(blob, *place))
        except (SealError, msgspec.DecodeError) as error:
            _log.error("an admin token opens nothing: %s", error)
            return None


def token_digest(token: str) -> bytes:
    """A plain hash is enough for a token that is long and random."""
    return hashlib.sha256(token.encode()).digest()
