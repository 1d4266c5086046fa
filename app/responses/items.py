"""Items that clients find again: input as it is listed, and what an `item_reference` names.

An item's id holds its response's: whoever names one names where it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from app.generate.request import Item, ItemName
from app.prompt.history import History, SocketHistory, Turn
from app.responses.parse import conversation
from app.wire.common import parse
from app.wire.errors import ApiError, invalid_request
from app.wire.responses import CreateBody, InputItem, ItemReference, MessageItem, ResolvedInput

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[io][0-9]+")
_MAX_NAMED_RESPONSES = 64
"""Responses that the references of one request may lie in."""
_PREFIXES = {
    "message": "msg",
    "compaction": "cmp",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}


def output_item_id(kind: str, response_id: str, index: int) -> str:
    """The id of a response's item, such as a message's with the `kind` "msg"."""
    return f"{kind}_{response_id.removeprefix('resp_')}o{index}"


def listed_input(response_id: str, body: CreateBody) -> bytes:
    """The items of a request as `input_items` lists them, as JSON; each has an id."""
    listed = [_listed(response_id, index, item) for index, item in enumerate(body.items)]
    return msgspec.json.encode(listed)


def _listed(response_id: str, index: int, item: InputItem) -> dict[str, Any]:
    if isinstance(item, ItemReference):
        return {"type": "item_reference", "id": item.id}
    listed: dict[str, Any] = item.model_dump(exclude_none=True)
    kind = _PREFIXES[item.type]
    listed["id"] = item.id or f"{kind}_{response_id.removeprefix('resp_')}i{index}"
    if isinstance(item, MessageItem):
        kind = "output_text" if item.role == "assistant" else "input_text"
        if isinstance(item.content, str):
            listed["content"] = [{"type": kind, "text": item.content}]
        listed.setdefault("status", "completed")
    return listed


async def resolved(
    items: Sequence[Item | ItemName],
    tenant_id: str,
    history: History,
    on_socket: SocketHistory | None,
) -> list[Item]:
    """`items`, with what is named in the place of names.

    Raises `ApiError` for a name that nothing of this tenant's has, and `StoreUnavailable`.
    """
    known: dict[str, dict[str, Any]] = {}
    found: list[Item] = []
    for index, item in enumerate(items):
        if not isinstance(item, ItemName):
            found.append(item)
            continue
        param = f"input[{index}].id"
        match = _ITEM_ID.fullmatch(item.id)
        response_id = f"resp_{match[1]}" if match else ""
        if match and response_id not in known:
            if len(known) == _MAX_NAMED_RESPONSES:
                message = f"References lie in {_MAX_NAMED_RESPONSES} responses at most."
                raise invalid_request(message, param)
            turn = None if on_socket is None else on_socket.load(response_id)
            known[response_id] = _by_id(turn or await history.load(tenant_id, response_id))
        document = known.get(response_id, {}).get(item.id)
        if document is None:
            message = f"There is no item '{item.id}'."
            raise ApiError(404, message, code="item_not_found", param=param)
        found += conversation([parse(ResolvedInput, {"item": document}, ignores_unknown=True).item])
    return found


class _Output(msgspec.Struct):
    """What is read of a response."""

    output: list[dict[str, Any]]


def _by_id(turn: Turn | None) -> dict[str, Any]:
    """A turn's items, input and output, by their ids."""
    if turn is None:
        return {}
    given = msgspec.json.decode(turn.input or b"[]", type=list[dict[str, Any]])
    items = [*given, *msgspec.json.decode(turn.response, type=_Output).output]
    return {item["id"]: item for item in items if item["type"] != "item_reference"}
