"""Pictures of earlier turns, found again where these are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from app.prompt.history import History, SocketHistory
from app.prompt.picture_style import Shown
from app.responses.conversations import ConversationStore
from app.wire.errors import ApiError
from app.wire.functions import Picture
from app.workers import Workers


class KeptPictures:
    """Finds them in responses and in conversations; `workers` read these."""

    def __init__(
        self, history: History, conversations: ConversationStore, workers: Workers
    ) -> None:
        self._history = history
        self._conversations = conversations
        self._workers = workers

    async def picture(
        self, tenant_id: str, shown: Shown, on_socket: SocketHistory | None
    ) -> Picture | None:
        """A picture as it was sent; `None` where it is not kept any more. Raises
        `StoreUnavailable`.
        """
        kept = await self._items(tenant_id, shown.origin, on_socket)
        return await self._workers.run(tenant_id, partial(_found, kept, shown.source))

    async def _items(
        self, tenant_id: str, origin: str, on_socket: SocketHistory | None
    ) -> Sequence[bytes]:
        """The items that are kept under an id, or lists of them, as JSON."""
        if origin.startswith("conv_"):
            try:
                kept = await self._conversations.load(tenant_id, origin)
            except ApiError:
                return ()
            return list(kept.items.values())
        turn = on_socket.load(origin) if on_socket is not None else None
        turn = turn or await self._history.load(tenant_id, origin)
        return () if turn is None else [turn.input or b"[]"]


def _found(kept: Sequence[bytes], source: bytes) -> Picture | None:
    pictures = (sent for one in kept if b'"input_image"' in one for sent in _pictures(one))
    return next((one for one in pictures if one.source == source), None)


def _pictures(kept: bytes) -> Iterator[Picture]:
    """All pictures in an item, or in a list of them."""
    decoded = msgspec.json.decode(kept)
    items: list[dict[str, Any]] = decoded if isinstance(decoded, list) else [decoded]
    for item in items:
        for parts in (item.get("content"), item.get("output")):
            for part in parts if isinstance(parts, list) else ():
                if part.get("type") == "input_image":
                    yield Picture(url=part.get("image_url", ""), file_id=part.get("file_id", ""))
