"""Items that clients find again: input as it is listed, and what an `item_reference` names.

An item's id holds its response's: whoever names one names where it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from app.prompt.history import History, SocketHistory, Turn
from app.request.request import Earlier, GenerationRequest, Item, ItemName, item_characters
from app.responses.conversations import Conversation, ConversationStore, without_logprobs
from app.responses.parse import conversation
from app.transport.bounds import INLINE_BYTES
from app.wire.common import MAX_ITEMS, parse
from app.wire.errors import ApiError, invalid_request
from app.wire.items import (
    InputItem,
    ItemReference,
    KeptItems,
    MessageItem,
    ReasoningItem,
    ResolvedInput,
)
from app.wire.responses import CreateBody
from app.workers import Workers

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[io][0-9]+")
_MAX_NAMED_RESPONSES = 64
"""Responses that the references of one request may lie in."""
_INLINE_CHARACTERS = 4096
_INLINE_MESSAGES = 32
_PREFIXES = {
    "message": "msg",
    "compaction": "cmp",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


def output_item_id(kind: str, response_id: str, index: int) -> str:
    """The id of a response's item, such as a message's with the `kind` "msg"."""
    return f"{kind}_{response_id.removeprefix('resp_')}o{index}"


def is_short(body: CreateBody) -> bool:
    """Whether its input is listed in less time than a worker would take to begin with it."""
    if isinstance(body.input, str):
        return len(body.input) <= _INLINE_CHARACTERS
    texts = [item.content for item in body.input if isinstance(item, MessageItem)]
    return (
        len(texts) == len(body.input) <= _INLINE_MESSAGES
        and all(isinstance(text, str) for text in texts)
        and sum(map(len, texts)) <= _INLINE_CHARACTERS
    )


def listed_items(owner: str, items: Sequence[InputItem]) -> bytes:
    """Items as lists show them, as JSON; those without an id have one of the `owner`'s."""
    return msgspec.json.encode([_listed(owner, index, item) for index, item in enumerate(items)])


def _listed(owner: str, index: int, item: InputItem) -> dict[str, Any]:
    if isinstance(item, ItemReference):
        return {"type": "item_reference", "id": item.id}
    listed: dict[str, Any] = item.model_dump(exclude_none=True)
    kind = _PREFIXES[item.type]
    listed["id"] = item.id or f"{kind}_{owner}i{index}"
    if isinstance(item, MessageItem):
        kind = "output_text" if item.role == "assistant" else "input_text"
        if isinstance(item.content, str):
            listed["content"] = [{"type": kind, "text": item.content}]
        listed.setdefault("status", "completed")
    if isinstance(item, ReasoningItem):
        listed.setdefault("summary", [])
    return listed


def with_named(listed: bytes, named: Mapping[str, bytes]) -> bytes:
    """A list of items as JSON, with what is `named` by some in their place."""

    def resolved(item: msgspec.Raw) -> msgspec.Raw:
        if b'"item_reference"' not in bytes(item):
            return item
        name = msgspec.json.decode(item, type=_Name)
        is_name = name.type == "item_reference" and name.id in named
        return msgspec.Raw(named[name.id]) if is_name else item

    items = msgspec.json.decode(listed, type=list[msgspec.Raw])
    return msgspec.json.encode(list(map(resolved, items)))


class _Name(msgspec.Struct):
    """What is read of an item that may stand for another."""

    type: str
    id: str


class NamedItems:
    """Puts items of earlier responses in the place of their names; `workers` read these responses.

    They bring `max_characters` to one request at most, like a body that holds them: a name may
    stand in it again and again. A conversation with so many bytes is full: nothing more is said in
    it.
    """

    def __init__(
        self,
        history: History,
        conversations: ConversationStore,
        workers: Workers,
        max_characters: int,
    ) -> None:
        self._history = history
        self._conversations = conversations
        self._workers = workers
        self._max_characters = max_characters

    async def resolve(
        self, request: GenerationRequest, tenant_id: str, on_socket: SocketHistory | None
    ) -> tuple[GenerationRequest, dict[str, bytes]]:
        """A request with what was said before it, and as JSON by id what its names stand for.

        Raises `ApiError` for a name that nothing of this tenant's has, and `StoreUnavailable`.
        """
        earlier = request.earlier
        if request.conversation_id is not None:
            earlier = await self._earlier(tenant_id, request.conversation_id)
        items, named = await self._found(request.items, tenant_id, on_socket, earlier.kept)
        return replace(request, items=items, earlier=earlier), named

    async def _earlier(self, tenant_id: str, conversation_id: str) -> Earlier:
        """What was said in a conversation before a request that names it."""
        kept = await self._conversations.load(tenant_id, conversation_id)
        if len(kept.items) >= MAX_ITEMS or kept.num_bytes >= self._max_characters:
            message = "This conversation is full: begin another one, or delete some of its items."
            raise invalid_request(message, "conversation")
        if kept.num_bytes <= INLINE_BYTES:
            return _said_in(kept, conversation_id)
        return await self._workers.run(tenant_id, partial(_said_in, kept, conversation_id))

    async def _found(
        self,
        items: Sequence[Item | ItemName],
        tenant_id: str,
        on_socket: SocketHistory | None,
        said: Mapping[str, bytes],
    ) -> tuple[list[Item], dict[str, bytes]]:
        """`items`, with what is named in the place of names; what was `said` before stays there."""
        turns: dict[str, Turn | None] = {}
        for index, item in enumerate(items):
            if not isinstance(item, ItemName) or item.id in said:
                continue
            response_id = _response_of(item)
            if response_id is None or response_id in turns:
                continue
            if len(turns) == _MAX_NAMED_RESPONSES:
                message = f"References lie in {_MAX_NAMED_RESPONSES} responses at most."
                raise invalid_request(message, f"input[{index}].id")
            turn = None if on_socket is None else on_socket.load(response_id)
            turns[response_id] = turn or await self._history.load(tenant_id, response_id)
        work = partial(_resolved, items, turns, said, self._max_characters)
        return await self._workers.run(tenant_id, work) if turns else work()


def _said_in(kept: Conversation, conversation_id: str) -> Earlier:
    documents = {"items": [msgspec.json.decode(item) for item in kept.items.values()]}
    items = parse(KeptItems, documents, ignores_unknown=True).items
    said = conversation(items, "conversation", conversation_id)
    return Earlier(said, kept.end_user, kept.items)


def _resolved(
    items: Sequence[Item | ItemName],
    turns: Mapping[str, Turn | None],
    said: Mapping[str, bytes],
    max_characters: int,
) -> tuple[list[Item], dict[str, bytes]]:
    documents = {response_id: _by_id(turn) for response_id, turn in turns.items()}
    known: dict[str, Item] = {}
    found: list[Item] = []
    named: dict[str, bytes] = {}
    for index, item in enumerate(items):
        if not isinstance(item, ItemName):
            found.append(item)
            continue
        if item.id in said:
            named[item.id] = said[item.id]
            continue
        param = f"input[{index}].id"
        if item.id not in known:
            response_id = _response_of(item) or ""
            document = documents.get(response_id, {}).get(item.id)
            if document is None:
                message = f"There is no item '{item.id}'."
                raise ApiError(404, message, code="item_not_found", param=param)
            resolved = parse(ResolvedInput, {"item": document}, ignores_unknown=True)
            [known[item.id]] = conversation([resolved.item], "input", response_id)
            named[item.id] = msgspec.json.encode(without_logprobs(document))
        max_characters -= item_characters(known[item.id])
        if max_characters < 0:
            raise invalid_request("References bring more text than a body may hold.", param)
        found.append(known[item.id])
    return found, named


def _response_of(name: ItemName) -> str | None:
    """The response that an item lies in; `None` for a name that none can have."""
    match = _ITEM_ID.fullmatch(name.id)
    return f"resp_{match[1]}" if match else None


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
