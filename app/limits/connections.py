"""Who is connected: every open socket and running stream, ended when its key or tenant ends.

A revoked or expired key, a disabled tenant and a deleted one are noticed in every replica: by the
store's notices, by the clock, and by looking again now and then in case a notice was lost. What a
tenant may no longer keep in the engine goes at the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
)
from dataclasses import dataclass
from typing import Any

from app.limits.admission import limit_error
from app.limits.auth import tenant_disabled
from app.wire.errors import ApiError, unauthorized
from engine.api import EngineUnavailable
from engine.client import EngineClient
from tenants.errors import SealError, StoreUnavailable, TenantNotFound
from tenants.groups import ShareGroups
from tenants.limits.limiter import Limiter, LimitExceeded
from tenants.records import Change, Principal, Tenant, is_id
from tenants.store import TenantStore

_log = logging.getLogger(__name__)
_SWEEP_SECONDS = 30.0
_RETRY_SECONDS = 0.5
_DOUBT_SECONDS = 60.0
_PARALLEL_REVIEWS = 16
POLICY_VIOLATION = 1008
"""Of a socket whose key or tenant has ended."""

CloseSocket = Callable[[int, str], Awaitable[None]]
"""Closes a socket with a code and a reason."""


@dataclass(eq=False, slots=True)
class Connection:
    """An open socket or a running stream. Its `principal` follows changes of tenant and key."""

    principal: Principal
    end: Callable[[ApiError], Coroutine[Any, Any, None]]
    is_socket: bool
    ended: bool = False
    leaves_blocks: bool = False
    """Whether the engine must forget the tenant again once this stream is over."""


@dataclass(frozen=True)
class Connected:
    """What one tenant has open in this replica."""

    sockets: int
    streams: int


class Connections:
    """The connections of this replica."""

    def __init__(
        self, tenants: TenantStore, groups: ShareGroups, limiter: Limiter, engine: EngineClient
    ) -> None:
        self._tenants = tenants
        self._groups = groups
        self._limiter = limiter
        self._engine = engine
        self._connections: dict[str, set[Connection]] = {}
        self._suspects: set[str] = set()
        self._without_cache: set[str] = set()
        self._resync = False
        self._woken = asyncio.Event()
        self._last_notice = float("-inf")
        self._parallel = asyncio.Semaphore(_PARALLEL_REVIEWS)
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def socket(self, principal: Principal, close: CloseSocket) -> AsyncIterator[Connection]:
        """While entered, a socket counts as one of its tenant's.

        Each request over it is made by the connection's `principal` of that moment. `close` is
        called at most once: with 1008 and a reason, when the key or the tenant has ended. Raises
        `ApiError` 429 for a tenant that has as many sockets as it may.
        """
        socket_id = secrets.token_hex(8)
        try:
            await self._limiter.open_socket(principal.tenant, socket_id)
        except LimitExceeded as exceeded:
            raise limit_error(exceeded) from None

        async def end(error: ApiError) -> None:
            await close(POLICY_VIOLATION, error.message)

        try:
            with self._present(Connection(principal, end, is_socket=True)) as connection:
                yield connection
        finally:
            await self._limiter.close_socket(principal.tenant, socket_id)

    @contextlib.contextmanager
    def stream(self, principal: Principal, fail: Callable[[ApiError], None]) -> Iterator[None]:
        """While entered, a generation is told to `fail` once the key or the tenant has ended.

        To be left when the engine no longer runs it.
        """

        async def end(error: ApiError) -> None:
            fail(error)

        with self._present(Connection(principal, end, is_socket=False)):
            yield

    def snapshot(self) -> dict[str, Connected]:
        """What every connected tenant has open, by its id."""
        counts = {}
        for tenant_id, connections in self._connections.items():
            sockets = sum(connection.is_socket for connection in connections)
            counts[tenant_id] = Connected(sockets, len(connections) - sockets)
        return counts

    def notice(self, change: Change) -> None:
        """Take note of a change of the store; `run` acts on it at once."""
        if change.kind not in ("prompts", "adapters", "cancel", "forget"):
            self._last_notice = time.monotonic()
        if change.kind == "resync":
            self._resync = True
            self._woken.set()
            self._spawn(self._suspect_whom_the_engine_knows())
        elif change.kind in ("tenant", "deleted", "keys"):
            self._suspect(change.tenant_id)
        elif change.kind == "group":
            for tenant_id, connections in self._connections.items():
                if any(one.principal.tenant.share_group == change.name for one in connections):
                    self._suspect(tenant_id)

    async def run(self) -> None:
        """End what may not go on, until cancelled."""
        sweep_at = time.monotonic() + _SWEEP_SECONDS
        try:
            while True:
                retry = _RETRY_SECONDS if self._suspects else float("inf")
                pause = min(retry, sweep_at - time.monotonic(), self._expiry() - time.time())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, pause)):
                        await self._woken.wait()
                self._woken.clear()
                suspects, self._suspects = self._suspects | self._expired(), set()
                if self._resync or time.monotonic() >= sweep_at:
                    self._resync = False
                    sweep_at = time.monotonic() + _SWEEP_SECONDS
                    suspects |= self._connections.keys()
                await self._review_all(suspects)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.contextmanager
    def _present(self, connection: Connection) -> Iterator[Connection]:
        tenant_id = connection.principal.tenant.id
        self._connections.setdefault(tenant_id, set()).add(connection)
        if time.monotonic() - self._last_notice < _DOUBT_SECONDS:
            # The notice may have come after the key was looked up, and before this line.
            self._suspect(tenant_id)
        elif connection.principal.key.expires_at is not None:
            self._woken.set()
        try:
            yield connection
        finally:
            connections = self._connections[tenant_id]
            connections.remove(connection)
            if not connections:
                del self._connections[tenant_id]
            if connection.leaves_blocks:
                self._spawn(self._engine.forget_tenant(tenant_id))

    def _suspect(self, tenant_id: str) -> None:
        self._suspects.add(tenant_id)
        self._woken.set()

    def _keys(self) -> Iterator[Principal]:
        for connections in self._connections.values():
            for connection in connections:
                if not connection.ended and connection.principal.key.expires_at is not None:
                    yield connection.principal

    def _expiry(self) -> float:
        """When the next connected key expires."""
        return min((one.key.expires_at or 0.0 for one in self._keys()), default=float("inf"))

    def _expired(self) -> set[str]:
        now = time.time()
        return {one.tenant.id for one in self._keys() if not one.key.is_live(now)}

    async def _suspect_whom_the_engine_knows(self) -> None:
        """Also those without a connection may have to be forgotten."""
        with contextlib.suppress(EngineUnavailable):
            for tenant_id in (await self._engine.stats()).tenants:
                if is_id(tenant_id):
                    self._suspect(tenant_id)

    async def _review_all(self, tenant_ids: Collection[str]) -> None:
        """Review each; whatever goes wrong with one is tried again, and keeps no other from it."""
        outcomes = await asyncio.gather(*map(self._review, tenant_ids), return_exceptions=True)
        for tenant_id, error in zip(tenant_ids, outcomes, strict=True):
            if error is not None:
                _log.error("tenant %s could not be reviewed", tenant_id, exc_info=error)
                self._suspects.add(tenant_id)

    async def _review(self, tenant_id: str) -> None:
        """End a tenant's connections that may not go on, and renew the principals of the others."""
        try:
            async with self._parallel:
                found = await self._load(tenant_id)
        except StoreUnavailable:
            self._suspects.add(tenant_id)
            found = None
        connections = list(self._connections.get(tenant_id, ()))
        if found is not None:
            self._forget_unwanted(tenant_id, found.tenant, connections)
        for connection in connections:
            if connection.ended:
                continue
            known: Principal | None = connection.principal
            if found is not None:
                known = found.principals.get(connection.principal.key.id)
            error = _objection(known)
            if error is not None:
                connection.ended = True
                self._spawn(connection.end(error))
            elif known is not None:
                connection.principal = known

    def _forget_unwanted(
        self, tenant_id: str, tenant: Tenant | None, connections: Iterable[Connection]
    ) -> None:
        """Have the engine forget a deleted tenant, and one whose cache has been switched off."""
        if tenant is not None and tenant.cache == "on":
            self._without_cache.discard(tenant_id)
            return
        for connection in connections:
            # It may have been handed to the engine as one that caches, even after this moment.
            if not connection.is_socket and connection.principal.tenant.cache == "on":
                connection.leaves_blocks = True
        if tenant_id not in self._without_cache:
            self._spawn(self._engine.forget_tenant(tenant_id))
        if tenant is None:
            self._without_cache.discard(tenant_id)
        else:
            self._without_cache.add(tenant_id)

    async def _load(self, tenant_id: str) -> _Found:
        try:
            tenant = await self._tenants.get_tenant(tenant_id)
            keys = await self._tenants.list_keys(tenant_id)
        except TenantNotFound:
            return _Found(None, {})
        except SealError as error:
            _log.error("tenant %s is not served: %s", tenant_id, error)
            return _Found(None, {})
        group = await self._groups.of(tenant)
        principals = {key.id: Principal(tenant=tenant, key=key, group=group) for key in keys}
        return _Found(tenant, principals)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside everything else: one slow reader must not keep the others alive."""

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                _log.error("what a change asked for has failed", exc_info=task.exception())

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)


@dataclass(frozen=True)
class _Found:
    """A tenant, `None` if it was deleted, and the principals of its keys by their ids."""

    tenant: Tenant | None
    principals: dict[str, Principal]


def _objection(principal: Principal | None) -> ApiError | None:
    """Why a connection may not go on, if so."""
    if principal is None or not principal.key.is_live(time.time()):
        return unauthorized("This API key is no longer valid.")
    return tenant_disabled() if principal.tenant.status == "disabled" else None
