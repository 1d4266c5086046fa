"""A chain of responses as the items that were said in it, for who goes on under another beginning.

A continuation goes on from token ids, which begin with instructions and tools. Where these are to
be others, all that was said is written anew behind them: what both begin with is found again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from app.prompt.history import History, SocketHistory, Turn
from app.request.request import Earlier, Item
from app.responses.parse import conversation
from app.wire.common import MAX_ITEMS, parse
from app.wire.errors import ApiError, invalid_request
from app.wire.items import KeptItems
from app.workers import Workers

_PARAM = "previous_response_id"


class _Shown(msgspec.Struct):
    """What is read of a response."""

    output: list[dict[str, Any]]
    previous_response_id: str | None = None
    conversation: dict[str, Any] | None = None


class Retelling:
    """Tells chains, of so many bytes at most; `workers` read them."""

    def __init__(self, history: History, workers: Workers, max_bytes: int) -> None:
        self._history = history
        self._workers = workers
        self._max_bytes = max_bytes

    async def earlier(
        self, tenant_id: str, response_id: str, on_socket: SocketHistory | None
    ) -> Earlier:
        """What was said up to a response.

        Raises `ApiError` where some of it is not kept, or it is too long, and `StoreUnavailable`.
        """
        turns, left, wanted = dict[str, Turn](), self._max_bytes, str(response_id)
        while wanted:
            turn = on_socket.load(wanted) if on_socket is not None else None
            turn = turn or await self._history.load(tenant_id, wanted)
            if turn is None:
                raise _gone(wanted)
            turns[wanted] = turn
            left -= len(turn.input) + len(turn.response)
            if left < 0 or len(turns) > MAX_ITEMS:
                message = "The conversation is too long to change its instructions or tools."
                raise invalid_request(message, _PARAM)
            shown = msgspec.json.decode(turn.response, type=_Shown)
            if shown.conversation is not None:
                message = (
                    f"Response '{wanted}' is of a conversation: name that, and not the response, "
                    "where instructions or tools are to be others."
                )
                raise invalid_request(message, _PARAM)
            wanted = shown.previous_response_id or ""
        said = await self._workers.run(tenant_id, partial(_said_in, turns))
        return Earlier(said, turns[response_id].end_user)


def _said_in(turns: dict[str, Turn]) -> list[Item]:
    """What was said in turns by their responses' ids, the last one first."""
    said = list[Item]()
    for response_id, turn in reversed(turns.items()):
        items = msgspec.json.decode(turn.input or b"[]", type=list[dict[str, Any]])
        items += msgspec.json.decode(turn.response, type=_Shown).output
        kept = parse(KeptItems, {"items": items}, ignores_unknown=True)
        said += conversation(kept.items, _PARAM, response_id)
    return said


def _gone(response_id: str) -> ApiError:
    message = (
        f"Response '{response_id}', which the conversation goes back to, is not kept any more: its "
        "instructions and tools cannot be changed."
    )
    return ApiError(400, message, code="previous_response_not_found", param=_PARAM)
