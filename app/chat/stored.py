"""Chat completions that a client has asked to be stored."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from app.late_writes import LateWrites
from app.wire.chat import ChatBody, ChatCompletion, ChatMessage
from app.wire.errors import completion_not_found, invalid_request
from app.wire.events import encode_json
from app.workers import Workers
from tenants.at_rest.records import decoded
from tenants.errors import StoreConflict, StoreUnavailable, TooLargeToStore
from tenants.records import Tenant
from tenants.stored.objects import REVISION_BYTES, EditedObjects

_log = logging.getLogger(__name__)
_READ_AT_ONCE = 16
_PAGE_BYTES = 8 * 1024 * 1024


class StoredCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one; `answer` is its JSON without metadata, `messages` a list as JSON."""

    kept_at: float
    model: str
    metadata: dict[str, str]
    answer: bytes
    messages: bytes

    @property
    def shown(self) -> msgspec.Raw:
        """It as clients see it."""
        metadata = msgspec.json.encode(self.metadata)
        return msgspec.Raw(b'%b,"metadata":%b}' % (self.answer[:-1], metadata))


@dataclass(frozen=True)
class Wanted:
    """Which ones a list has: those of a model, with certain metadata."""

    model: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def matches(self, kept: StoredCompletion) -> bool:
        """Whether the list has this one."""
        of_model = self.model in (None, kept.model)
        return of_model and self.metadata.items() <= kept.metadata.items()


class StoredCompletions:
    """The stored completions of all tenants, each for `ttl_seconds` after its last change."""

    def __init__(
        self, stored: EditedObjects, late: LateWrites, workers: Workers, ttl_seconds: int
    ) -> None:
        self._stored = stored
        self._late = late
        self._workers = workers
        self._ttl_seconds = ttl_seconds

    def keeping(
        self, tenant: Tenant, body: ChatBody
    ) -> Callable[[ChatCompletion], Awaitable[None]]:
        """What keeps the answer to a body: later where the store is down."""

        async def keep(completion: ChatCompletion) -> None:
            messages = partial(_listed, completion.id, body.messages)
            kept = StoredCompletion(
                kept_at=time.time(),
                model=completion.model,
                metadata=body.metadata or {},
                answer=encode_json(completion),
                messages=await self._workers.run(tenant.id, messages),
            )
            content = msgspec.msgpack.encode(kept)
            put = partial(self._put, tenant, completion.id, content, kept.kept_at)
            await self._late.make((tenant.id, completion.id), len(content), put)

        return keep

    async def load(self, tenant_id: str, completion_id: str) -> StoredCompletion:
        """A tenant's completion. Raises `ApiError` 404, and `StoreUnavailable`."""
        blob = await self._stored.load(tenant_id, completion_id)
        return _read(completion_id, b"" if blob is None else blob[REVISION_BYTES:])

    async def update(
        self, tenant: Tenant, completion_id: str, metadata: dict[str, str]
    ) -> StoredCompletion:
        """A completion with other metadata from now on.

        Raises what `load` raises, and `ApiError` 400 for more than the tenant may keep.
        """
        kept_at = (await self.load(tenant.id, completion_id)).kept_at

        def edit(content: bytes) -> bytes:
            old = _read(completion_id, content)
            return msgspec.msgpack.encode(msgspec.structs.replace(old, metadata=metadata))

        limit = tenant.limits.stored_bytes
        try:
            blob = await self._stored.edit(
                tenant.id, completion_id, edit, self._ttl_seconds, limit, kept_at, tenant.generation
            )
        except TooLargeToStore as error:
            raise invalid_request(str(error), "metadata") from error
        except StoreConflict as error:
            raise StoreUnavailable(str(error)) from error
        return _read(completion_id, b"" if blob is None else blob[REVISION_BYTES:])

    async def delete(self, tenant_id: str, completion_id: str) -> None:
        """Forget a completion. Raises what `load` raises."""
        if not await self._stored.delete(tenant_id, completion_id):
            raise completion_not_found(completion_id)

    async def listed(
        self, tenant_id: str, wanted: Wanted, after: str | None, *, newest_first: bool, limit: int
    ) -> tuple[list[tuple[str, msgspec.Raw]], bool] | None:
        """Up to `limit` completions behind `after`, by their ids, and whether there are more.

        `None` where `after` is none of the tenant's. Raises `StoreUnavailable`.
        """
        found: list[tuple[str, msgspec.Raw]] = []
        while True:
            batch = await self._stored.listed(
                tenant_id, after, newest_first=newest_first, limit=_READ_AT_ONCE
            )
            if not batch:
                return None if batch is None else (found, False)
            after, _ = batch[-1]
            for completion_id, blob in batch:
                content = b"" if blob is None else blob[REVISION_BYTES:]
                kept = _decoded(completion_id, content)
                if kept is None or not wanted.matches(kept):
                    continue
                if len(found) == limit or sum(len(bytes(one)) for _, one in found) > _PAGE_BYTES:
                    return found, True
                found.append((completion_id, kept.shown))

    async def _put(self, tenant: Tenant, completion_id: str, content: bytes, at: float) -> None:
        limit = tenant.limits.stored_bytes
        try:
            await self._stored.put(
                tenant.id, completion_id, content, self._ttl_seconds, limit, at, tenant.generation
            )
        except TooLargeToStore as error:
            _log.warning("chat completion %s is not kept: %s", completion_id, error)


def _read(completion_id: str, content: bytes) -> StoredCompletion:
    """Raises `ApiError` 404 for nothing, and for what is no completion."""
    kept = _decoded(completion_id, content)
    if kept is None:
        raise completion_not_found(completion_id)
    return kept


def _decoded(completion_id: str, content: bytes) -> StoredCompletion | None:
    return decoded(content, StoredCompletion, completion_id) if content else None


def _listed(completion_id: str, messages: Sequence[ChatMessage]) -> bytes:
    """The messages of a request as lists show them, as JSON."""
    listed = []
    for index, message in enumerate(messages):
        shown: dict[str, Any] = message.model_dump(exclude_none=True)
        parts = None if isinstance(message.content, str) else shown.get("content")
        content = message.content and message.text
        shown |= {"id": f"{completion_id}-{index}", "content": content, "content_parts": parts}
        listed.append(shown)
    return msgspec.json.encode(listed)
