"""Registered system prompts computed before their first chat, and the pinned ones kept in memory.

What is active and what is pinned is brought into the engine at the start, whenever the store says
that something changed, and again when the engine comes back from a crash with an empty cache; one
prompt at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from app.generation.engine_request import tenant_share
from app.limits.booking import Booking, Used
from app.prompt.system_prompts import RegisteredPrompts
from app.wire.errors import ApiError
from engine.api import (
    EngineError,
    EngineRequest,
    EngineUnavailable,
    Namespaces,
    RequestRefused,
    SamplingParams,
    TenantShare,
)
from engine.client import EngineClient
from tenants.errors import (
    GroupNotFound,
    InvalidField,
    PromptNotFound,
    SealError,
    StoreUnavailable,
    TenantNotFound,
)
from tenants.groups import ShareGroups
from tenants.prompts.index import index_prompt
from tenants.prompts.system_prompts import SystemPrompts
from tenants.records import Change, PromptIndex, ShareGroup, SystemPrompt, Tenant
from tenants.store import TenantStore


@dataclass(frozen=True)
class Secrets:
    """The keys of an owner's namespaces, and of those of the group that it is in."""

    own: bytes
    group: str | None = None
    of_group: bytes = b""

    @classmethod
    def of(cls, tenant: Tenant, group: ShareGroup | None) -> Secrets:
        """Those of a tenant."""
        if group is None:
            return cls(tenant.namespace_key)
        return cls(tenant.namespace_key, group.id, group.namespace_key)

    @property
    def told_apart(self) -> str:
        """What is another for others, and shows nothing of them."""
        return blake2b(self.own + self.of_group, digest_size=16).hexdigest()

    def replace(self, before: Secrets) -> bool:
        """Whether there were others in the place of some of these."""
        is_same_group = self.group == before.group
        return self.own != before.own or (is_same_group and self.of_group != before.of_group)


@dataclass(frozen=True)
class Owner:
    """A tenant or a share group, as far as its prompts are concerned."""

    id: str
    secrets: Secrets
    share: TenantShare
    generation: str

    @classmethod
    def tenant(cls, tenant: Tenant, group: ShareGroup | None) -> Owner:
        """A tenant, and the group that it is in."""
        share = tenant_share(tenant)
        return cls(tenant.id, Secrets.of(tenant, group), share, tenant.generation)

    @classmethod
    def group(cls, group: ShareGroup) -> Owner:
        """A share group."""
        secrets = Secrets(group.namespace_key)
        return cls(group.owner, secrets, TenantShare(), group.generation)

    @property
    def namespace_key(self) -> bytes:
        """The key that the blocks of the owner's prompts are hashed under."""
        return self.secrets.own


def all_secrets(tenants: Iterable[Tenant], groups: Iterable[ShareGroup]) -> dict[str, Secrets]:
    """Of all owners who may have something in the cache."""
    by_id = {group.id: group for group in groups}
    found = {group.owner: Secrets(group.namespace_key) for group in by_id.values()}
    for tenant in tenants:
        if tenant.cache == "on":
            found[tenant.id] = Secrets.of(tenant, by_id.get(tenant.share_group or ""))
    return found


_log = logging.getLogger(__name__)
_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class _State:
    """What the engine was asked to hold of one prompt, and which engine: they are counted."""

    owner: Owner
    version: int
    pinned: bool
    engine: int


class Warmer:
    """Keeps the blocks of all registered prompts computed, and those of the pinned ones held."""

    def __init__(
        self,
        engine: EngineClient,
        tenants: TenantStore,
        groups: ShareGroups,
        prompts: SystemPrompts,
        registered: RegisteredPrompts,
        booking: Booking,
    ) -> None:
        self._engine = engine
        self._tenants = tenants
        self._groups = groups
        self._prompts = prompts
        self._registered = registered
        self._booking = booking
        # Owners whose prompts are to be looked at; or everybody's.
        self._stale: set[str] = set()
        self._all_stale = False
        self._wanted = asyncio.Event()
        self._one_by_one = asyncio.Lock()
        # By owner and name: what has been done, and which pins the engine may hold.
        self._warm: dict[tuple[str, str], _State] = {}
        self._pinned: set[tuple[str, str]] = set()
        # By owner: the secrets under which the engine may have something of it.
        self._secrets: dict[str, Secrets] = {}
        self._engine_starts = 0

    def notice(self, change: Change) -> None:
        """Take note of a change of the store; `run` acts on it."""
        if change.kind == "resync":
            self._look_at_everybody()
        elif change.kind not in ("keys", "adapters", "cancel", "forget"):
            group = f"@{change.name}"
            self._stale.add(group if change.kind == "group" else change.tenant_id)
            self._wanted.set()

    async def run(self) -> None:
        """Warm until cancelled; `watch_engine` must run beside."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._catch_up()
            except (StoreUnavailable, EngineUnavailable) as error:
                _log.warning("warming waits %s s: %s", _RETRY_SECONDS, error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._wanted.set()

    async def watch_engine(self) -> None:
        """Have everything warmed again whenever the engine has started, until cancelled."""
        while True:
            self._engine_starts = await self._engine.wait_started(self._engine_starts)
            self._look_at_everybody()

    async def warm(self, owner: str, name: str) -> PromptIndex:
        """Compute the active version of a prompt now, and pin it if it is to be; its blocks' index.

        `owner` is a tenant's id or a share group's `owner`. Raises `TenantNotFound`,
        `GroupNotFound`, `PromptNotFound`, `InvalidField` for a tenant whose cache is off,
        `StoreUnavailable`, or `EngineError` (`RequestRefused` for a prompt that the model cannot
        take, plainly that for a pin without room).
        """
        return await self._compute(await self._owner(owner), name)

    def _look_at_everybody(self) -> None:
        self._all_stale = True
        self._wanted.set()

    async def _catch_up(self) -> None:
        """Bring the engine in line with what is registered by owners that are stale."""
        if self._all_stale:
            self._all_stale = False
            try:
                tenants, groups = await self._tenants.list_tenants(), await self._groups.list()
            except StoreUnavailable:
                self._all_stale = True
                raise
            now = all_secrets(tenants, groups)
            await self._engine.forget_others({one: now[one].told_apart for one in now})
            self._secrets = now | self._secrets
            self._stale.update(self._secrets)
            self._stale.update(owner for owner, _ in (*self._warm, *self._pinned))
        while self._stale:
            owner_id = min(self._stale)
            self._stale.remove(owner_id)
            try:
                await self._refresh(owner_id)
            except (StoreUnavailable, EngineUnavailable):
                self._stale.add(owner_id)
                raise

    async def _refresh(self, owner_id: str) -> None:
        """Unpin what an owner has no more, and warm what it has new."""
        registered: dict[str, _State] = {}
        found: Owner | None = None
        with contextlib.suppress(TenantNotFound, GroupNotFound, InvalidField, SealError):
            found = await self._owner(owner_id)
            await self._heed_secrets(found)
            for prompt in await self._prompts.list(owner_id):
                registered[prompt.name] = self._state(found, prompt)
        if found is None:
            self._secrets.pop(owner_id, None)
            if owner_id.startswith("@"):  # tenants are forgotten where their connections end
                await self._engine.forget_tenant(owner_id)
        known = {name for owner, name in (*self._warm, *self._pinned) if owner == owner_id}
        for name in known - registered.keys():
            async with self._one_by_one:
                self._warm.pop((owner_id, name), None)
                await self._unpin(owner_id, name)
        for name, state in registered.items():
            if self._warm.get((owner_id, name)) != state:
                await self._try_to_compute(state, name)

    async def _heed_secrets(self, owner: Owner) -> None:
        """Have the engine forget what it has under former secrets of an owner's.

        Some of what members of a group have computed is the group's, and its end with it.
        """
        before, now = self._secrets.get(owner.id), owner.secrets
        if before is not None and now.replace(before):
            await self._engine.forget_tenant(owner.id)
            for known in [known for known in self._warm if known[0] == owner.id]:
                del self._warm[known]
            if owner.id.startswith("@"):
                self._stale.update(await self._groups.members(owner.id.removeprefix("@")))
        if before != now:
            await self._engine.keep_under(owner.id, now.told_apart)
        self._secrets[owner.id] = now

    async def _try_to_compute(self, state: _State, name: str) -> None:
        """Compute a prompt; one that has no room is left alone until something changes."""
        owner_id = state.owner.id
        try:
            await self._compute(state.owner, name)
        except PromptNotFound:
            _log.info("prompt %s of %s was deleted before it was warm", name, owner_id)
        except (EngineUnavailable, StoreUnavailable):
            raise
        except EngineError as error:
            self._warm[owner_id, name] = state
            _log.warning("prompt %s of %s stays cold: %s", name, owner_id, error)

    async def _compute(self, owner: Owner, name: str) -> PromptIndex:
        """Compute one prompt in its owner's namespace, and save the index of its blocks."""
        async with self._one_by_one:
            prompt = await self._prompts.get(owner.id, name)
            if prompt is None:
                raise PromptNotFound(name)
            try:
                prefix = await self._registered.prefix_ids(owner.id, prompt)
            except ApiError as error:  # the model's chat template takes no system message
                raise RequestRefused(error.message, "text") from error
            info, state = self._engine.info, self._state(owner, prompt)
            if prompt.pinned:
                self._pinned.add((owner.id, name))
            else:
                await self._unpin(owner.id, name)
            await self._warm_up(owner, _warming_request(owner, prompt, prefix))
            index = index_prompt(owner.namespace_key, prompt, prefix, info, warmed_at=time.time())
            await self._prompts.save_index(owner.id, index)
            self._warm[owner.id, name] = state
            _log.info("warmed prompt %s of %s: %d tokens", name, owner.id, len(prefix))
            return index

    async def _warm_up(self, owner: Owner, request: EngineRequest) -> None:
        """Have the engine compute it, and book what that took."""
        async for delta in self._engine.generate(request):
            if delta.finish_reason in ("error", "aborted"):
                raise EngineError(delta.error or "the engine stopped while warming")
            if delta.finish_reason is not None:
                used = Used(
                    prompt_tokens=len(request.prompt),
                    cached_tokens=delta.cached_tokens,
                    cache_write_tokens=delta.cache_write_tokens,
                )
                self._booking.warming(owner.id, owner.generation, used)

    def _state(self, owner: Owner, prompt: SystemPrompt) -> _State:
        return _State(owner, prompt.version, prompt.pinned, self._engine_starts)

    async def _unpin(self, owner_id: str, name: str) -> None:
        if (owner_id, name) in self._pinned:
            self._pinned.remove((owner_id, name))
            await self._engine.unpin(_pin(owner_id, name))

    async def _owner(self, owner: str) -> Owner:
        if owner.startswith("@"):
            return Owner.group(await self._groups.get(owner.removeprefix("@")))
        tenant = await self._tenants.get_tenant(owner)
        if tenant.cache == "off":
            raise InvalidField("cache", "is off for this tenant: nothing of it stays in memory")
        return Owner.tenant(tenant, await self._groups.of(tenant))


def _pin(owner: str, name: str) -> str:
    return f"{owner}/{name}"


def _warming_request(owner: Owner, prompt: SystemPrompt, prefix: list[int]) -> EngineRequest:
    return EngineRequest(
        request_id=f"warm_{secrets.token_hex(8)}",
        tenant=owner.id,
        prompt=prefix,
        namespaces=Namespaces(
            shared_key=owner.namespace_key,
            private_key=owner.namespace_key,
            shared_tokens=len(prefix),
        ),
        sampling=SamplingParams(max_tokens=0, temperature=0.0),
        share=owner.share,
        pin=_pin(owner.id, prompt.name) if prompt.pinned else None,
    )
