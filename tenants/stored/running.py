"""Responses that run somewhere: every process over one Redis can show them and have them cancelled.

While one runs in a conversation no other may: it has claimed it. A claim is a lease too, a shorter
one, which nobody but its response renews or ends.

A record says which process runs it, and that one renews a key of its own: what a process has left
behind that died is seen to have nobody, within seconds. Records are written behind the responses'
backs, all that wait in one round trip: no stream waits for Redis. They are encrypted when they are
written, each time anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from typing import NamedTuple

from tenants import redis_keys
from tenants.errors import SealError, StoreUnavailable
from tenants.keyring import Keyring
from tenants.records import Change
from tenants.storage import changes
from tenants.storage.connection import Command, GuardedRedis, Script
from tenants.stored.objects import is_object_id

_log = logging.getLogger(__name__)
PROCESS_SECONDS = 5.0
CLAIM_SECONDS = 6.0
_RECORD_SECONDS = 3600
"""For which it can be told that the process of a response is gone."""
_RENEW_SECONDS = 1.0
_RENEWALS_OF_RECORD = 10
"""As often claims and the process are renewed while a record is once, which may be long."""
_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.25
_GONE_SECONDS = 2.5
"""Without its key, a process is gone. Redis may have been away, and is told again first: within a
call that ends late, the pause behind it, and two more tries."""
_OWNER_DIGITS = 16

# KEYS: the claim. ARGV: the response that has it, milliseconds to keep it. It is taken again where
# it was lost, but from no other.
_RENEW = Script("""
local held = redis.call('GET', KEYS[1])
if not held or held == ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
""")

# KEYS: the claim. ARGV: the response that had it.
_RELEASE = Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
""")


class _Record(NamedTuple):
    """What others are to show of a response."""

    tenant_id: str
    key: str
    content: bytes


class Found(NamedTuple):
    """What is to be shown of a response that runs; or that ran, and whose process is gone."""

    content: bytes
    runs: bool


class RunningResponses:
    """The running responses of all processes; `run` writes what this one notes."""

    def __init__(
        self,
        redis: GuardedRedis,
        keyring: Keyring,
        process_seconds: float = PROCESS_SECONDS,
        claim_seconds: float = CLAIM_SECONDS,
    ) -> None:
        self._redis = redis
        self._keyring = keyring
        self._owner = secrets.token_hex(_OWNER_DIGITS // 2)
        self._process_milliseconds = int(process_seconds * 1000)
        self._claim_milliseconds = int(claim_seconds * 1000)
        # What renews each record, and what Redis has not been told yet.
        self._running: dict[str, Command | _Record] = {}
        self._unwritten: dict[str, Command | _Record] = {}
        self._ended: set[str] = set()
        """Records of this process that Redis may still have, though their responses are over."""
        self._claims: dict[str, str] = {}
        """Responses of this process, by what they have claimed."""
        self._woken = asyncio.Event()

    def note_begin(self, tenant_id: str, response_id: str, record: bytes) -> None:
        """A response of this process runs; `record` is what others are to show of it."""
        key = redis_keys.running(tenant_id, response_id)
        self._running[key] = self._unwritten[key] = _Record(tenant_id, key, record)
        self._ended.discard(key)
        self._woken.set()

    def note_end(self, tenant_id: str, response_id: str) -> None:
        """It runs no longer; harmless for one that never did."""
        key = redis_keys.running(tenant_id, response_id)
        if self._running.pop(key, None) is not None:
            self._unwritten[key] = ("DEL", key)
            self._ended.add(key)
            self._woken.set()

    async def claim(self, tenant_id: str, conversation_id: str, response_id: str) -> bool:
        """Have a response be the one that runs in a conversation; whether there is no other.

        While Redis is down only those of this process are known.
        """
        key, lease = redis_keys.claimed(tenant_id, conversation_id), self._claim_milliseconds
        if key in self._claims:
            return False
        try:
            is_free = await self._redis.execute("SET", key, response_id, "NX", "PX", lease)
        except StoreUnavailable:
            is_free = True
        if not is_free or key in self._claims:
            return False
        self._claims[key] = response_id
        return True

    async def release(self, tenant_id: str, conversation_id: str, response_id: str) -> None:
        """Let others run in a conversation; harmless for one that the response does not claim."""
        key = redis_keys.claimed(tenant_id, conversation_id)
        if self._claims.get(key) != response_id:
            return
        del self._claims[key]
        try:
            await self._redis.run_script(_RELEASE, [key], [response_id])
        except StoreUnavailable:
            self._release_late(key, response_id)

    async def find(self, tenant_id: str, response_id: str) -> Found | None:
        """The tenant's record of a response that runs in any process, or whose process is gone: it
        may take some seconds to tell. Raises `StoreUnavailable`.
        """
        if not is_object_id(response_id):
            return None
        key = redis_keys.running(tenant_id, response_id)
        record = await self._redis.execute("GET", key)
        while True:
            if key in self._ended or record is None:
                return None
            opened = await self._keyring.open(tenant_id, record, key)
            if opened is None:
                return None
            owner, content = opened[:_OWNER_DIGITS], opened[_OWNER_DIGITS:]
            if await self._is_there(owner.decode(errors="replace")):
                return Found(content, runs=True)
            looked_at, record = record, await self._redis.execute("GET", key)
            if record == looked_at:  # else another process has gone on with it meanwhile
                return Found(content, runs=False)

    async def forget(self, tenant_id: str, response_id: str) -> None:
        """Find a response no more whose process is gone. Raises `StoreUnavailable`."""
        await self._redis.execute("DEL", redis_keys.running(tenant_id, response_id))

    async def _is_there(self, owner: str) -> bool:
        """Whether a process is; where it has not said so lately, as soon as it does or is gone."""
        if owner == self._owner:
            return True
        late, missing_since = self._process_milliseconds / 2, None
        while True:
            left = await self._redis.execute("PTTL", redis_keys.process(owner))
            if left > late:
                return True
            now = time.monotonic()
            missing_since = None if left >= 0 else missing_since or now
            if missing_since is not None and now - missing_since >= _GONE_SECONDS:
                return False
            await asyncio.sleep(_LOOK_SECONDS)

    async def ask_to_cancel(self, tenant_id: str, response_id: str) -> None:
        """Have whoever runs a response cancel it. Raises `StoreUnavailable`."""
        notice = Change(kind="cancel", tenant_id=tenant_id, name=response_id)
        await self._redis.execute(*changes.publication(notice))

    async def run(self) -> None:
        """Write and renew records until cancelled; what has ended by then is written last, and that
        this process is gone.
        """
        renew_at = time.monotonic() + _RENEW_SECONDS
        renewals = 0
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, renew_at - time.monotonic())):
                        await self._woken.wait()
                self._woken.clear()
                if time.monotonic() >= renew_at:
                    renew_at = time.monotonic() + _RENEW_SECONDS
                    renewals += 1
                    await self._renew_claims()
                    if renewals % _RENEWALS_OF_RECORD == 0:
                        self._unwritten = self._running | self._unwritten
                if not await self._write():
                    await asyncio.sleep(_RETRY_SECONDS)
                    self._woken.set()
        finally:
            self._unwritten["process"] = ("DEL", redis_keys.process(self._owner))
            await self._write()

    async def _renew_claims(self) -> None:
        claims, lease = list(self._claims.items()), self._claim_milliseconds
        try:
            await self._redis.run_script_on_each(
                _RENEW, [([key], (holder, lease)) for key, holder in claims]
            )
        except StoreUnavailable as error:
            _log.debug("claims are not renewed: %s", error)
        for key, holder in claims:
            if self._claims.get(key) != holder:  # its end may have come before this
                self._release_late(key, holder)

    def _release_late(self, key: str, holder: str) -> None:
        self._unwritten[key] = ("EVAL", _RELEASE.text, 1, key, holder)
        self._woken.set()

    async def _write(self) -> bool:
        """Write what Redis does not know yet; whether it could be."""
        batch: dict[str, Command] = {}
        try:
            await self._seal_records()
            batch = {
                key: what for key, what in self._unwritten.items() if not isinstance(what, _Record)
            }
            for key in batch:
                del self._unwritten[key]
            await self._redis.pipeline(*self._beat(), *batch.values())
        except StoreUnavailable as error:
            _log.debug("running responses are not recorded: %s", error)
            self._unwritten = batch | self._unwritten
            return False
        self._ended -= batch.keys() - self._unwritten.keys()
        return True

    def _beat(self) -> list[Command]:
        """What says that this process is there, if others may want to know."""
        key = redis_keys.process(self._owner)
        return [("SET", key, "", "PX", self._process_milliseconds)] if self._running else []

    async def _seal_records(self) -> None:
        """Put commands in the place of records, but of those that are replaced meanwhile."""
        for key, what in list(self._unwritten.items()):
            if isinstance(what, _Record):
                sealed = await self._sealed(what)
                if self._unwritten.get(key) is not what:
                    continue
                if sealed is None:
                    del self._unwritten[key]
                else:
                    self._unwritten[key] = ("SET", key, sealed, "EX", _RECORD_SECONDS)

    async def _sealed(self, record: _Record) -> bytes | None:
        """A record as it is stored; `None` of a tenant that is not there any more."""
        try:
            content = self._owner.encode() + record.content
            return await self._keyring.seal(record.tenant_id, content, record.key)
        except SealError as error:
            _log.error("a running response is not recorded: %s", error)
            return None
