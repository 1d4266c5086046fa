"""Conversations that are kept for clients, as the items that they find again.

They are in the tenant store, and in memory what that does not take yet.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from app.late_writes import LateWrites
from app.recent import Recent
from app.wire.errors import ApiError, conversation_locked, conversation_not_found, invalid_request
from tenants.at_rest.records import decoded
from tenants.errors import StoreConflict, StoreUnavailable, TooLargeToStore
from tenants.records import Change, Tenant
from tenants.stored.objects import REVISION_BYTES, EditedObjects

_log = logging.getLogger(__name__)
_REMEMBERED_BYTES = 32 * 1024 * 1024

KeptItem = tuple[str, bytes]
"""An item's id, and the item as JSON."""
Edit = Callable[["Conversation"], "Conversation"]
Key = tuple[str, str]
"""A tenant's id and a conversation's."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Its `items` are JSON by their ids, oldest first.

    It belongs to the `end_user` whom a request in it has named last.
    """

    created_at: int
    metadata: dict[str, str] = {}
    items: dict[str, bytes] = {}
    end_user: str | None = None

    @property
    def num_bytes(self) -> int:
        """The length of its items."""
        return sum(map(len, self.items.values()))

    def with_items(self, items: Sequence[KeptItem], end_user: str | None = None) -> Conversation:
        """It with more items at its end; another one under an id that is taken has a new id.

        Items that are there already stay as they are: a write that failed is repeated, and may
        have happened.
        """
        grown = dict(self.items)
        for item_id, item in items:
            if grown.get(item_id, item) != item:
                item_id = f"item_{blake2b(item, digest_size=16).hexdigest()}"
                item = msgspec.json.encode(msgspec.json.decode(item) | {"id": item_id})
            grown[item_id] = item
        return msgspec.structs.replace(self, items=grown, end_user=end_user or self.end_user)

    def check_results(self, items: Sequence[KeptItem]) -> None:
        """Raise `ApiError` for one of `items` that is the result of no call without a result."""
        waiting: set[str] = set()
        for item in self.items.values():
            _follow(item, waiting)
        for index, (item_id, item) in enumerate(items):
            missing = None if self.items.get(item_id) == item else _follow(item, waiting)
            if missing is not None:
                message = f"There is no call '{missing}' that has no result yet."
                raise invalid_request(message, f"items[{index}].call_id")

    def without_item(self, item_id: str) -> Conversation:
        """It without one of its items."""
        left = {one: item for one, item in self.items.items() if one != item_id}
        return msgspec.structs.replace(self, items=left)

    def shown(self, conversation_id: str) -> dict[str, Any]:
        """It as clients see it."""
        return {
            "id": conversation_id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }


class _Known(NamedTuple):
    revision: bytes
    conversation: Conversation


class ConversationStore:
    """The conversations of all tenants, each kept for `ttl_seconds` after its last change.

    While the store is down a conversation goes on from what this process has last seen of it, and
    what is said is written later.
    """

    def __init__(self, stored: EditedObjects, late: LateWrites, ttl_seconds: int) -> None:
        self._stored = stored
        self._late = late
        self._ttl_seconds = ttl_seconds
        self._known = Recent[Key, _Known](_REMEMBERED_BYTES, lambda one: one.conversation.num_bytes)

    async def create(
        self, tenant: Tenant, items: Sequence[KeptItem], metadata: dict[str, str]
    ) -> tuple[str, Conversation]:
        """A new conversation and its id. Raises `ApiError` 400, and `StoreUnavailable`."""
        conversation_id = f"conv_{secrets.token_hex(16)}"
        conversation = Conversation(created_at=int(time.time()), metadata=metadata)
        conversation = conversation.with_items(items)
        content, limit = msgspec.msgpack.encode(conversation), tenant.limits.stored_bytes
        try:
            revision = await self._stored.put(
                tenant.id,
                conversation_id,
                content,
                self._ttl_seconds,
                limit,
                generation=tenant.generation,
            )
        except TooLargeToStore as error:
            raise invalid_request(str(error), "items") from error
        self._known.put((tenant.id, conversation_id), _Known(revision, conversation))
        return conversation_id, conversation

    async def load(self, tenant_id: str, conversation_id: str) -> Conversation:
        """A tenant's conversation. Raises `ApiError` 404.

        Raises `StoreUnavailable` for one that this process has not seen.
        """
        key = tenant_id, conversation_id
        try:
            await self._late.catch_up(key)
            blob = await self._stored.load(tenant_id, conversation_id)
        except StoreUnavailable:
            if (known := self._known.get(key)) is None:
                raise
            return known.conversation
        if blob is None:
            self._known.drop(key)
            raise conversation_not_found(conversation_id)
        return self._seen(key, blob)

    async def edit(
        self, tenant: Tenant, conversation_id: str, change: Edit, field: str = "items"
    ) -> Conversation:
        """What `change` makes of a conversation, called again where others come in between.

        It is what a request's `field` asks for. Raises `ApiError` 404, 400 for more than the
        tenant may keep, and 409 where others do not stop; and `StoreUnavailable`.
        """
        key = tenant.id, conversation_id
        await self._late.catch_up(key)
        try:
            return await self._edit(key, tenant, change)
        except TooLargeToStore as error:
            raise invalid_request(str(error), field) from error
        except StoreConflict as error:
            raise conversation_locked(conversation_id) from error

    async def delete(self, tenant_id: str, conversation_id: str) -> None:
        """Forget a conversation, everywhere. Raises `ApiError` 404, and `StoreUnavailable`."""
        found = await self._stored.delete(tenant_id, conversation_id)
        self._known.drop((tenant_id, conversation_id))
        if not found:
            raise conversation_not_found(conversation_id)

    async def append(
        self, tenant: Tenant, conversation_id: str, items: Sequence[KeptItem], end_user: str | None
    ) -> None:
        """Add what was said, later where the store is down; nothing to one that was deleted."""
        key = tenant.id, conversation_id

        def grown(old: Conversation) -> Conversation:
            return old.with_items(items, end_user)

        num_bytes = sum(len(item) for _, item in items)
        made = await self._late.make(key, num_bytes, partial(self._append, key, tenant, grown))
        if not made and (known := self._known.get(key)) is not None:
            self._known.put(key, known._replace(conversation=grown(known.conversation)))

    def notice(self, change: Change) -> None:
        """Forget what was deleted, or changed by another process."""
        if change.kind == "forget":
            conversation_id, _, revision = change.name.partition("/")
            known = self._known.get((change.tenant_id, conversation_id))
            if known is not None and known.revision.hex() != revision:
                self._known.drop((change.tenant_id, conversation_id))
        if change.kind == "deleted":
            for key in self._known:
                if key[0] == change.tenant_id:
                    self._known.drop(key)

    async def _edit(self, key: Key, tenant: Tenant, change: Edit) -> Conversation:
        tenant_id, conversation_id = key

        def edit(content: bytes) -> bytes:
            return msgspec.msgpack.encode(change(_read(conversation_id, content)))

        limit = tenant.limits.stored_bytes
        blob = await self._stored.edit(
            tenant_id, conversation_id, edit, self._ttl_seconds, limit, generation=tenant.generation
        )
        if blob is None:
            self._known.drop(key)
            raise conversation_not_found(conversation_id)
        conversation = self._seen(key, blob)
        with contextlib.suppress(StoreUnavailable):  # nobody else may know it then
            revision = blob[:REVISION_BYTES].hex()
            await self._stored.have_forgotten(tenant_id, f"{conversation_id}/{revision}")
        return conversation

    async def _append(self, key: Key, tenant: Tenant, change: Edit) -> None:
        try:
            await self._edit(key, tenant, change)
        except ApiError:
            _log.info("conversation %s was deleted while something was said in it", key[1])
        except TooLargeToStore as error:
            _log.warning("what was said in conversation %s is not kept: %s", key[1], error)
        except StoreConflict as error:
            raise StoreUnavailable(str(error)) from error

    def _seen(self, key: Key, blob: bytes) -> Conversation:
        conversation = _read(key[1], blob[REVISION_BYTES:])
        self._known.put(key, _Known(blob[:REVISION_BYTES], conversation))
        return conversation


def _read(conversation_id: str, content: bytes) -> Conversation:
    """Raises `ApiError` 404 for what is no conversation."""
    conversation = decoded(content, Conversation, conversation_id)
    if conversation is None:
        raise conversation_not_found(conversation_id)
    return conversation


class _Call(msgspec.Struct):
    """What is read of a call, or of a result."""

    type: str = ""
    call_id: str = ""


def _follow(item: bytes, waiting: set[str]) -> str | None:
    """Have `waiting` be the calls without a result behind an item; the call that a result lacks."""
    if b"_call" not in item:
        return None
    read = msgspec.json.decode(item, type=_Call)
    if read.type in ("function_call", "custom_tool_call"):
        waiting.add(read.call_id)
    elif read.type in ("function_call_output", "custom_tool_call_output"):
        if read.call_id not in waiting:
            return read.call_id
        waiting.remove(read.call_id)
    return None


class _Identified(msgspec.Struct):
    """What is read of an item."""

    id: str


def without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    """An item, changed so that its text has no log-probabilities."""
    content = item.get("content")
    for part in content if isinstance(content, list) else ():
        if "logprobs" in part:
            part["logprobs"] = []
    return item


def kept_items(listed: bytes, output: bytes = b"[]") -> list[KeptItem]:
    """Items of a request and of its answer, both lists as JSON, as a conversation keeps them.

    The log-probabilities of an answer can be a thousand times as long as its text: they are left
    out.
    """
    items = msgspec.json.decode(listed, type=list[msgspec.Raw])
    for item in msgspec.json.decode(output):
        items.append(msgspec.Raw(msgspec.json.encode(without_logprobs(item))))
    return [(msgspec.json.decode(item, type=_Identified).id, bytes(item)) for item in items]
