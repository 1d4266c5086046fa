"""Which adapter a request means, and the way of its files to the engine."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from typing import Final

from app.generation.engine_request import ModelNames
from app.prompt.sealing import PromptOrigin
from app.wire.errors import invalid_request
from engine.api import AdapterState, AdapterUse, EngineError
from engine.client import EngineClient
from engine.questions import ADAPTERS_AT_ONCE
from tenants.adapters.adapters import Adapters
from tenants.errors import AdapterNotFound, StoreUnavailable
from tenants.prompts.system_prompts import SystemPrompts
from tenants.records import AdapterRecord, Change, Principal

_MOST_KNOWN: Final = 10_000


class NamedAdapters:
    """Adapters as tenants name them, and as the engine does."""

    def __init__(
        self, names: ModelNames, engine: EngineClient, store: Adapters, prompts: SystemPrompts
    ) -> None:
        self._names = names
        self._engine = engine
        self._store = store
        self._prompts = prompts
        self._known: OrderedDict[bytes, AdapterRecord] = OrderedDict()
        """By the engine's name, those used last: what the engine may ask for."""
        self._unpinning: set[asyncio.Task[None]] = set()
        engine.source = self.files

    async def meant(
        self, principal: Principal, model: str | None, origin: PromptOrigin | None = None
    ) -> AdapterRecord | None:
        """The adapter that a request for this `model` means: the one that it names, or else that of
        its registered prompt, the `origin`, or else the tenant's own.

        Raises `ApiError` 404 where there is none of the name that the tenant may use.
        """
        name = self._names.adapter_in(model)
        if name is None and origin is not None:
            prompt = await self._prompts.get(origin.owner, origin.name, origin.version)
            name = None if prompt is None else prompt.adapter
        name = principal.tenant.adapter if name is None else name
        if not name:
            return None
        found = await self._store.resolve(principal.tenant, name)
        if found is None:
            raise self._names.unknown(f"{self._names.model_id}:{name}")
        return found

    async def usable(self, principal: Principal) -> list[AdapterRecord]:
        """Those that a tenant may name: its own, and those of its share group of other names."""
        tenant, group = principal.tenant, principal.group
        own = await self._store.list(tenant.id)
        shared = [] if group is None else await self._store.list(group.owner)
        names = {one.name for one in own}
        return [*own, *(one for one in shared if one.name not in names)]

    def use(self, principal: Principal, record: AdapterRecord, prompt: Sequence[int]) -> AdapterUse:
        """What the engine is told of an adapter for a prompt with these ids.

        Raises `ApiError` where it acts behind an invocation that is not in the prompt.
        """
        key, group = principal.tenant.namespace_key, principal.group
        if group is not None and record.owner == group.owner:
            key = group.namespace_key
        name = _engines_name(key, record)
        self._known[name] = record
        self._known.move_to_end(name)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        start = _last_place(record.invocation, prompt)
        if start is None:
            message = f"The prompt does not hold the invocation of the adapter '{record.name}'."
            raise invalid_request(message, "model")
        return AdapterUse(name, start, _pin(record.owner, record.name) if record.pinned else None)

    async def allow(self, principal: Principal, use: AdapterUse) -> AdapterRecord:
        """Let a request go on that was begun with an adapter, perhaps elsewhere; returns which.

        Raises `ApiError` 404 where it is not there any more.
        """
        for record in await self.usable(principal):
            if self.use(principal, record, record.invocation).name == use.name:
                return record
        raise self._names.unknown("the adapter that this response was begun with")

    async def states(
        self, namespace_key: bytes, records: Sequence[AdapterRecord]
    ) -> list[AdapterState | None]:
        """What the engine says of an owner's adapters; nothing of one that no request has named.

        Raises `EngineUnavailable`.
        """
        found: list[AdapterState | None] = []
        for start in range(0, len(records), ADAPTERS_AT_ONCE):
            part = records[start : start + ADAPTERS_AT_ONCE]
            names = [_engines_name(namespace_key, one) for one in part]
            found += await self._engine.adapter_states(names)
        return found

    async def files(self, name: bytes) -> AsyncIterator[bytes]:
        """See `engine.client.Source`."""
        record = self._known.get(name)
        if record is None:
            raise EngineError("there is no such adapter")
        try:
            yield await self._store.read_config(record)
            async for piece in self._store.read_weights(record):
                yield piece
        except AdapterNotFound:
            raise EngineError("it was deleted") from None
        except StoreUnavailable:
            raise EngineError("the store does not answer") from None

    def notice(self, change: Change) -> None:
        """An adapter that has changed is pinned again when it is used again, if it still is to."""
        if change.kind == "adapters":
            pin = _pin(change.tenant_id, change.name)
            task = asyncio.get_running_loop().create_task(self._engine.unpin(pin))
            self._unpinning.add(task)
            task.add_done_callback(self._unpinning.discard)


def _engines_name(namespace_key: bytes, record: AdapterRecord) -> bytes:
    """By which only its owner's requests have the engine find it."""
    return blake2b(record.digest, key=namespace_key, digest_size=32).digest()


def _pin(owner: str, name: str) -> str:
    return f"adapter {owner} {name}"


def _last_place(invocation: Sequence[int], prompt: Sequence[int]) -> int | None:
    """Where an invocation stands last; at the beginning where there is none to look for."""
    if not invocation:
        return 0
    wanted, ids = array("I", invocation), array("I", prompt)
    at = ids.tobytes().rfind(wanted.tobytes())
    while at % ids.itemsize and at > 0:  # by chance across two ids
        at = ids.tobytes().rfind(wanted.tobytes(), 0, at + len(wanted.tobytes()) - 1)
    return None if at < 0 or at % ids.itemsize else at // ids.itemsize
