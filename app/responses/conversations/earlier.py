"""What was said in a conversation before a request that names it."""

from __future__ import annotations

import msgspec

from app.request.request import Earlier
from app.responses.conversations.conversation import Conversation
from app.responses.conversations.store import ConversationStore
from app.responses.parse import conversation as said_in
from app.transport.bounds import INLINE_BYTES
from app.wire.common import parse
from app.wire.errors import invalid_request
from app.wire.items import KeptItems
from app.workers import Workers


class EarlierItems:
    """Reads conversations; `workers` do it with long ones.

    One of `max_bytes` is full: nothing more is said in it.
    """

    def __init__(self, store: ConversationStore, workers: Workers, max_bytes: int) -> None:
        self._store = store
        self._workers = workers
        self._max_bytes = max_bytes

    async def load(self, tenant_id: str, conversation_id: str) -> Earlier:
        """What was said. Raises `ApiError` naming `conversation`, and `StoreUnavailable`."""
        kept = await self._store.load(tenant_id, conversation_id)
        if kept.is_full(self._max_bytes):
            message = "This conversation is full: begin another one, or delete some of its items."
            raise invalid_request(message, "conversation")
        if kept.num_bytes <= INLINE_BYTES:
            return _earlier(kept)
        return await self._workers.run(tenant_id, lambda: _earlier(kept))


def _earlier(kept: Conversation) -> Earlier:
    documents = {"items": msgspec.json.decode(kept.listed)}
    items = parse(KeptItems, documents, ignores_unknown=True).items
    return Earlier(said_in(items), kept.end_user, kept.items)
