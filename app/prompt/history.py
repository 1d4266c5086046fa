"""The turns that later turns may continue: their token ids and the response as it was sent.

Stored responses live in the tenant store and in a cache here; those of `store: false` live with
their socket, in a `SocketHistory`, and nowhere else.
"""

from __future__ import annotations

import logging
from array import array

import msgspec

from app.prompt.picture_style import Shown
from app.prompt.reasoning_style import Aside
from app.prompt.sealing import PromptOrigin
from app.recent import Recent
from app.request.segments import Segments
from app.wire.errors import ApiError
from app.wire.functions import FunctionCall
from tenants.at_rest.records import decoded
from tenants.errors import StoreUnavailable, TooLargeToStore
from tenants.records import Change, Tenant
from tenants.stored.objects import StoredObjects

_log = logging.getLogger(__name__)
_TOKEN_BYTES = 4


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A finished response: all a continuation needs, and all a retrieval shows.

    `packed_ids` holds the prompt and every generated token, stop token included, as native
    unsigned 32-bit integers; a failed response keeps none and cannot be continued. The first
    `shared_tokens` of them belong to a registered system prompt of `shared_owner`, the tenant or
    its share group. `system` is the text of the system message that begins the conversation, and
    `origin` the registered prompt that it is the text of. At `starts` later requests of the
    conversation have begun, and at `asides` lies what was reasoned. `input` are the items of the
    request, as JSON. `tools` tells which functions the prompt describes. So many ids lie before
    each of the conversation's last `breakpoints`. What was said last may be unanswered, and the ids
    end with it. Of `segments`, `context` and `pictures` see
    `Prompt`.
    """

    packed_ids: bytes
    shared_tokens: int
    shared_owner: str
    system: str | None
    end_user: str | None
    response: bytes
    origin: PromptOrigin | None = None
    starts: list[int] = []
    input: bytes = b""
    tools: bytes = b""
    asides: list[Aside] = []
    breakpoints: list[int] = []
    is_unanswered: bool = False
    segments: Segments | None = None
    context: bytes = b""
    pictures: list[Shown] = []

    @property
    def calls(self) -> list[FunctionCall]:
        """The calls of the response."""
        shown = msgspec.json.decode(self.response, type=_Shown)
        return [call for item in shown.output if (call := item.call) is not None]

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        return array("I", self.packed_ids).tolist()


class _ShownItem(msgspec.Struct):
    """An item of a response, as far as it is a call."""

    type: str
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""

    @property
    def call(self) -> FunctionCall | None:
        """The call, if it is one."""
        if self.type == "custom_tool_call":
            return FunctionCall.of_text(self.call_id, self.name, self.input)
        is_call = self.type == "function_call"
        return FunctionCall(self.call_id, self.name, self.arguments) if is_call else None


class _Shown(msgspec.Struct):
    output: list[_ShownItem]


def pack_ids(ids: list[int]) -> bytes:
    """Token ids as `Turn.packed_ids` holds them."""
    return array("I", ids).tobytes()


class History:
    """The stored responses of all tenants, with the recently used ones in memory."""

    def __init__(self, stored: StoredObjects, ttl_seconds: int, cache_tokens: int) -> None:
        self._stored = stored
        self._ttl_seconds = ttl_seconds
        self._cached = Recent[tuple[str, str], Turn](cache_tokens, _size)

    async def save(self, tenant: Tenant, response_id: str, turn: Turn) -> None:
        """Keep a turn. While the store is down, or it is too large, it is kept in memory only."""
        self._cached.put((tenant.id, response_id), turn)
        blob = msgspec.msgpack.encode(turn)
        try:
            await self._stored.save(
                tenant.id,
                response_id,
                blob,
                self._ttl_seconds,
                tenant.limits.stored_bytes,
                tenant.generation,
            )
        except (StoreUnavailable, TooLargeToStore) as error:
            _log.warning("response %s is kept in memory only: %s", response_id, error)

    async def load(self, tenant_id: str, response_id: str) -> Turn | None:
        """A tenant's turn, or `None`. Raises `StoreUnavailable` where only the store could know."""
        key = (tenant_id, response_id)
        turn = self._cached.use(key)
        if turn is not None:
            return turn
        blob = await self._stored.load(tenant_id, response_id)
        if blob is None:
            return None
        turn = decoded(blob, Turn, response_id)
        if turn is not None:
            self._cached.put(key, turn)
        return turn

    async def continued(
        self, tenant_id: str, response_id: str, on_socket: SocketHistory | None
    ) -> Turn:
        """The turn that a request goes on from, the tenant's or its socket's.

        Raises `ApiError` for one that is not there or has failed, and `StoreUnavailable`.
        """
        turn = on_socket.load(response_id) if on_socket is not None else None
        turn = turn or await self.load(tenant_id, response_id)
        if turn is None or not turn.packed_ids:
            raise ApiError(
                400,
                f"Previous response with id '{response_id}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return turn

    async def delete(self, tenant_id: str, response_id: str) -> bool:
        """Forget a turn for good, here and everywhere; whether there was one.

        Raises `StoreUnavailable`.
        """
        is_known = (tenant_id, response_id) in self._cached
        is_stored = await self._stored.delete(tenant_id, response_id)
        self.forget(tenant_id, response_id)
        return is_known or is_stored

    def forget(self, tenant_id: str, response_id: str) -> None:
        """Remember a turn no longer: the store may have a newer one."""
        self._cached.drop((tenant_id, response_id))

    def notice(self, change: Change) -> None:
        """Forget the turns of a deleted tenant, and one that was deleted elsewhere."""
        if change.kind == "forget":
            self.forget(change.tenant_id, change.name)
        if change.kind == "deleted":
            for key in self._cached:
                if key[0] == change.tenant_id:
                    self._cached.drop(key)


def _size(turn: Turn) -> int:
    """What a turn weighs in memory, in tokens."""
    size = len(turn.packed_ids) + len(turn.response) + len(turn.input) + len(turn.system or "")
    return size // _TOKEN_BYTES


class SocketHistory:
    """The `store: false` responses of one socket, the oldest forgotten first.

    There is always room for the newest one.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._turns = Recent[str, Turn](max_bytes // _TOKEN_BYTES, _size, max_responses)

    def save(self, response_id: str, turn: Turn) -> None:
        """Keep a turn for as long as the socket lives, or until newer ones need the room."""
        self._turns.put(response_id, turn)

    def load(self, response_id: str) -> Turn | None:
        """The turn, or `None`."""
        return self._turns.get(response_id)

    def evict(self, response_id: str) -> None:
        """Forget a turn whose continuation failed: the client starts a new chain."""
        self._turns.drop(response_id)
