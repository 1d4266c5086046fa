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
from app.wire.functions import source_of
from app.workers import Workers


class KeptPictures:
    """Finds them in responses and in conversations; `workers` read these."""

    def __init__(
        self, history: History, conversations: ConversationStore, workers: Workers
    ) -> None:
        self._history = history
        self._conversations = conversations
        self._workers = workers

    async def url_of(
        self, tenant_id: str, shown: Shown, on_socket: SocketHistory | None
    ) -> str | None:
        """The URL of a picture; `None` where it is not kept any more. Raises `StoreUnavailable`."""
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


def _found(kept: Sequence[bytes], source: bytes) -> str | None:
    urls = (url for one in kept if b'"input_image"' in one for url in _urls(one))
    return next((url for url in urls if source_of(url) == source), None)


def _urls(kept: bytes) -> Iterator[str]:
    """The URLs of all pictures in an item, or in a list of them."""
    decoded = msgspec.json.decode(kept)
    items: list[dict[str, Any]] = decoded if isinstance(decoded, list) else [decoded]
    for item in items:
        for parts in (item.get("content"), item.get("output")):
            for part in parts if isinstance(parts, list) else ():
                if part.get("type") == "input_image":
                    yield part["image_url"]
