"""Registered system prompts computed before their first chat.

Every prompt is warmed at the start, whenever the store says that prompts changed, and again when
the engine comes back from a crash with an empty cache; one prompt at a time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from app.system_heads import SystemHeads
from engine.client import EngineClient, EngineError, RequestRefused
from engine.request import EngineRequest, Namespaces, SamplingParams
from tenants.errors import PromptNotFound, StoreUnavailable
from tenants.records import SystemPrompt, Tenant
from tenants.store import TenantStore
from tenants.system_prompts import SystemPrompts, index_prompt

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 5.0


class Warmer:
    """Keeps the blocks of all registered prompts computed."""

    def __init__(
        self,
        engine: EngineClient,
        tenants: TenantStore,
        prompts: SystemPrompts,
        heads: SystemHeads,
    ) -> None:
        self._engine = engine
        self._tenants = tenants
        self._prompts = prompts
        self._heads = heads
        self._wanted = asyncio.Event()
        self._warm: set[tuple[str, str, int]] = set()

    async def run(self) -> None:
        """Warm until cancelled."""
        watchers = [
            asyncio.create_task(self._watch_engine()),
            asyncio.create_task(self._watch_store()),
        ]
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                try:
                    await self._warm_all()
                except (StoreUnavailable, EngineError) as error:
                    _log.warning("warming waits %s s: %s", _RETRY_SECONDS, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    self._wanted.set()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def _watch_engine(self) -> None:
        starts = 0
        while True:
            starts = await self._engine.wait_started(starts)
            self._warm.clear()
            self._wanted.set()

    async def _watch_store(self) -> None:
        async for change in self._tenants.changes():
            if change.kind != "keys":
                self._wanted.set()

    async def _warm_all(self) -> None:
        registered: set[tuple[str, str, int]] = set()
        for tenant in await self._tenants.list_tenants():
            for prompt in await self._prompts.list(tenant.id):
                key = (tenant.id, prompt.name, prompt.version)
                registered.add(key)
                if key not in self._warm and await self._warmed(tenant, prompt):
                    self._warm.add(key)
        self._warm &= registered

    async def _warmed(self, tenant: Tenant, prompt: SystemPrompt) -> bool:
        """Warm one prompt; whether that is done with, for it may be gone or never fit."""
        try:
            await self.warm(tenant, prompt)
        except RequestRefused as error:
            _log.warning("prompt %s of tenant %s stays cold: %s", prompt.name, tenant.id, error)
        except PromptNotFound:
            return False
        return True

    async def warm(self, tenant: Tenant, prompt: SystemPrompt) -> None:
        """Compute a prompt's blocks in its tenant's namespace, and save their index.

        Raises `EngineError` (`RequestRefused` for a prompt longer than the context),
        `PromptNotFound` for one that was deleted meanwhile, or `StoreUnavailable`.
        """
        head = await self._heads.head(tenant.id, prompt)
        info = self._engine.info
        namespaces = Namespaces(
            shared_key=tenant.namespace_key,
            private_key=tenant.namespace_key,
            shared_tokens=len(head),
        )
        request = EngineRequest(
            request_id=f"warm_{secrets.token_hex(8)}",
            tenant=tenant.id,
            prompt=head,
            namespaces=namespaces,
            sampling=SamplingParams(max_tokens=0, temperature=0.0),
        )
        async for delta in self._engine.generate(request):
            if delta.finish_reason in ("error", "aborted"):
                raise EngineError(delta.error or "the engine stopped while warming")
        index = index_prompt(tenant, prompt, head, info, warmed_at=time.time())
        await self._prompts.save_index(tenant.id, index)
        _log.info("warmed prompt %s of tenant %s: %d tokens", prompt.name, tenant.id, len(head))
