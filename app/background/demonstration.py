"""A minute that shows what the wall is about: three tenants, on a small part of an empty cache.

It runs beside requests and enters as they do. Its tenants are records like others', called
"demo-...", which are removed with all that they used: at the end, or, where its process died, by
whichever process looks next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from app.background.demonstration_script import TENANTS, Script
from app.generation.begin import Generations
from app.limits.admission import Gate
from app.prompt.chat_template import ChatTemplate
from app.stores import Stores
from app.wire.errors import ApiError
from engine.api import EngineError, EngineStats
from engine.client import EngineClient
from tenants.demonstrations import Demonstrated
from tenants.errors import StoreError, StoreUnavailable, TenantNotFound
from tenants.records import Principal, Tenant, TenantLimits

_log = logging.getLogger(__name__)
_NAME: Final = "Demonstration"
_BEAT_SECONDS: Final = 8.0
"""Of what is shown of one thing; a slow machine is given up on it after as much again, and half."""
_PATIENCE: Final = 1.5
_BEATS: Final = 6
_GRACE_SECONDS: Final = 20.0
"""Behind its end, after which the process of a demonstration must have died."""
_SWEEP_SECONDS: Final = 20.0
_MOST_BLOCKS: Final = 64
_LEAST_BLOCKS: Final = 16
_PART: Final = 8
"""Each tenant may hold this part of the blocks, or less."""
_WEIGHT: Final = 0.1
"""Of its tenants beside others."""


class DemonstrationRefused(Exception):
    """None can begin now, for this reason."""


@dataclass(frozen=True)
class Caption:
    """What is happening, since a time (Unix)."""

    at: float
    text: str


@dataclass(frozen=True)
class Shown:
    """A demonstration as this process knows it: what it has said so far, if it runs here."""

    record: Demonstrated
    captions: Sequence[Caption] = ()


class Demonstration:
    """Begins one, and cleans up behind each."""

    def __init__(
        self,
        engine: EngineClient,
        stores: Stores,
        generations: Generations,
        template: ChatTemplate,
        gate: Gate,
    ) -> None:
        self.beat_seconds = _BEAT_SECONDS
        self._engine = engine
        self._stores = stores
        self._generations = generations
        self._template = template
        self._gate = gate
        self._shown: Shown | None = None
        """The last one of this process, also when it is over."""
        self._playing: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._wanted: Demonstrated | None = None

    async def current(self) -> tuple[Shown | None, bool]:
        """The one that is under way, or else the last one of this process; and whether it is under
        way. Raises `StoreUnavailable`.
        """
        record = await self._stores.demonstrations.current()
        if record is None:
            return self._shown, False
        here = self._shown is not None and self._shown.record == record
        return (self._shown if here else Shown(record)), True

    async def begin(self, by: str) -> Shown:
        """Begin one, for an operator of this name.

        Raises `DemonstrationRefused`, `EngineError` and `StoreUnavailable`.
        """
        self._check(await self._engine.stats())
        for tenant in TENANTS:
            with contextlib.suppress(TenantNotFound):
                await self._stores.tenants.get_tenant(tenant)
                if await self._stores.demonstrations.current() is None:
                    raise DemonstrationRefused(f"There is a tenant called {tenant} already.")
        now = time.time()
        most = _BEATS * _PATIENCE * self.beat_seconds
        record = Demonstrated(by=by, tenants=list(TENANTS), began_at=now, ends_at=now + most)
        if not await self._stores.demonstrations.begin(record):
            raise DemonstrationRefused("One is under way already; there is one at a time.")
        self._shown, self._wanted = Shown(record), record
        self._woken.set()
        return self._shown

    async def end(self) -> bool:
        """Have the one that is under way end now. Returns whether none is, or it is this process's;
        another's ends by itself.
        """
        shown, is_running = await self.current()
        if not is_running:
            return True
        if shown is not self._shown:
            return False
        self._wanted = None
        if self._playing is not None:
            self._playing.cancel()
        self._woken.set()
        return True

    async def run(self) -> None:
        """Show what is asked for, and clean up behind all, until cancelled."""
        while True:
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._woken.wait()
            self._woken.clear()

    async def _look(self) -> None:
        """Show what is wanted; else remove what another process has left, or what never began."""
        record, self._wanted = self._wanted, None
        with contextlib.suppress(StoreUnavailable):  # it is looked again soon
            if record is not None:
                await self._show(record)
                return
            left = await self._stores.demonstrations.current()
            if left is None:
                return
            is_own = self._shown is not None and self._shown.record == left
            if is_own or time.time() > left.ends_at + _GRACE_SECONDS:
                await self._clean(left)

    async def _show(self, record: Demonstrated) -> None:
        self._playing = asyncio.create_task(self._play(record))
        try:
            await asyncio.wait([self._playing])
        finally:
            self._playing.cancel()
            await asyncio.gather(self._playing, return_exceptions=True)
            self._playing = None
            await self._clean(record)

    async def _play(self, record: Demonstrated) -> None:
        """All beats; what goes wrong ends it, and is said."""
        loop = asyncio.get_running_loop()
        try:
            principals = {one: await self._tenant(one, record.by) for one in record.tenants}
            script = Script(
                self._engine, self._generations, self._template, principals, self._num_blocks
            )
            for beat in await script.beats():
                began = loop.time()
                self._say(beat.text)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE * self.beat_seconds):
                        await beat.act()
                await asyncio.sleep(max(0.0, began + self.beat_seconds - loop.time()))
            self._say("That was it: its tenants are removed, with all that they had and used.")
        except (ApiError, EngineError, StoreError, DemonstrationRefused) as error:
            _log.warning("the demonstration has ended early: %s", error)
            self._say(f"It has ended early: {error}")

    async def _tenant(self, name: str, by: str) -> Principal:
        limits = TenantLimits(blocks=self._num_blocks, concurrent_streams=4)

        def edit(draft: Tenant) -> Tenant:
            return structs.replace(draft, weight=_WEIGHT, limits=limits)

        tenants = self._stores.tenants
        _, api_key = await tenants.create_tenant(name, _NAME, edit=edit, actor=by)
        principal = await tenants.authenticate(api_key)
        if principal is None:
            raise DemonstrationRefused("Its tenants were removed.")
        return principal

    async def _clean(self, record: Demonstrated) -> None:
        """Remove its tenants, and let another one begin. Raises `StoreUnavailable`."""
        outcomes = await asyncio.gather(
            *(self._remove(one, record) for one in record.tenants), return_exceptions=True
        )
        for error in outcomes:
            if isinstance(error, BaseException):
                raise error
        await self._stores.demonstrations.end(record)

    async def _remove(self, name: str, record: Demonstrated) -> None:
        tenants = self._stores.tenants
        try:
            tenant = await tenants.get_tenant(name)
            if tenant.name != _NAME or tenant.created_at < record.began_at:
                return  # somebody else's, who was faster
        except TenantNotFound:
            pass  # or cut off in the midst of this
        with contextlib.suppress(TenantNotFound):
            await tenants.delete_tenant(name, actor=record.by)

    def _say(self, text: str) -> None:
        if self._shown is not None:
            captions = [*self._shown.captions, Caption(time.time(), text)]
            self._shown = replace(self._shown, captions=captions)

    @property
    def _num_blocks(self) -> int:
        """Those that each of its tenants may hold."""
        info = self._engine.info
        in_context = info.max_context_tokens // info.block_size
        return min(_MOST_BLOCKS, info.num_blocks // _PART, in_context)

    def _check(self, stats: EngineStats) -> None:
        """Raises `DemonstrationRefused`."""
        wanted = len(TENANTS) * self._num_blocks
        num_free = stats.blocks_total - stats.blocks_in_use - stats.blocks_cached
        if self._engine.fleet is not None:
            raise DemonstrationRefused("Behind --cluster there is none: one wall is not enough.")
        if self._num_blocks < _LEAST_BLOCKS:
            raise DemonstrationRefused("The cache has too few blocks, or the context is too short.")
        if self._gate.is_shut:
            raise DemonstrationRefused("The service is stopping.")
        if stats.waiting or 2 * stats.running > self._engine.info.max_running_sequences:
            raise DemonstrationRefused("The service is busy with requests.")
        if num_free < wanted:
            raise DemonstrationRefused(
                f"It needs {wanted:,} free blocks, and {num_free:,} are: it pushes nobody out."
            )
