"""A conversation as it is kept: what was said, as the items that clients find again."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from app.wire.common import MAX_ITEMS
from app.wire.errors import invalid_request

KeptItem = tuple[str, bytes]
"""An item's id, and the item as JSON."""


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

    @property
    def listed(self) -> bytes:
        """Its items as a list, as JSON."""
        return b"[%b]" % b",".join(self.items.values())

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

    def is_full(self, max_bytes: int) -> bool:
        """Whether nothing more can be said in it."""
        return len(self.items) >= MAX_ITEMS or self.num_bytes >= max_bytes

    def shown(self, conversation_id: str) -> dict[str, Any]:
        """It as clients see it."""
        return {
            "id": conversation_id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }


class _Call(msgspec.Struct):
    """What is read of a call, or of a result."""

    type: str = ""
    call_id: str = ""


def _follow(item: bytes, waiting: set[str]) -> str | None:
    """Have `waiting` be the calls without a result behind an item; the call that a result lacks."""
    if b'"function_call' not in item:
        return None
    read = msgspec.json.decode(item, type=_Call)
    if read.type == "function_call":
        waiting.add(read.call_id)
    elif read.type == "function_call_output":
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
