"""Where responses are kept: finished ones to be continued, interrupted ones to be gone on with."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec

from app.generation.generation import Generation
from app.prompt.history import History, SocketHistory, Turn, pack_ids
from app.prompt.reasoning_style import asides_of
from app.responses.conversations import ConversationStore, kept_items
from app.responses.render import ResponseRenderer
from app.responses.suspension import SuspendedRun
from app.transport.bounds import INLINE_BYTES
from app.wire.errors import (
    ApiError,
    conversation_locked,
    conversation_not_found,
    invalid_request,
    response_lost,
    response_not_found,
    response_runs_elsewhere,
)
from app.wire.events import ResponseFailure, ResponseResource, Status, encode_json
from app.workers import Workers
from tenants.errors import StoreUnavailable, TooLargeToStore
from tenants.records import Tenant
from tenants.stored.objects import SuspendedResponses, is_object_id
from tenants.stored.running import RunningResponses

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.02
_LOST = ResponseFailure(code="response_lost", message="The process that ran the response is gone.")
_HAS_FAILED: dict[str, object] = {"status": "failed", "error": _LOST, "incomplete_details": None}
_IS_INTERRUPTED: dict[str, object] = {
    "status": "incomplete",
    "incomplete_details": {"reason": "service_restart"},
}
INTERRUPTED = b'"reason":"service_restart"'
"""How a response's JSON says so; a client's text has no quotes like these."""


class ResponseStore:
    """Keeps a response with its tenant, with its socket, or nowhere, as the response says."""

    def __init__(
        self,
        history: History,
        conversations: ConversationStore,
        workers: Workers,
        suspended: SuspendedResponses,
        running: RunningResponses,
        suspended_ttl_seconds: float,
    ) -> None:
        self._history = history
        self._conversations = conversations
        self._workers = workers
        self._suspended = suspended
        self._running = running
        self._suspended_ttl_seconds = suspended_ttl_seconds

    def note_begin(self, tenant_id: str, resource: ResponseResource) -> None:
        """A response runs here: other processes can show it, if it is one to be stored."""
        if resource.store:
            self._running.note_begin(tenant_id, resource.id, encode_json(resource))

    def note_end(self, tenant_id: str, response_id: str) -> None:
        """It runs no longer; to be told after `keep`, so that it is always found."""
        self._running.note_end(tenant_id, response_id)

    @contextlib.asynccontextmanager
    async def claiming(self, tenant_id: str, resource: ResponseResource) -> AsyncIterator[None]:
        """Have a response be the only one in its conversation, if that comes to its start.

        Raises `ApiError` 409 where another one runs in it, and 404 for what no conversation is.
        """
        if resource.conversation is not None:
            named = resource.conversation["id"]
            if not is_object_id(named):
                raise conversation_not_found(named)
            if not await self._running.claim(tenant_id, named, resource.id):
                raise conversation_locked(named)
        try:
            yield
        except BaseException:
            await self.leave_conversation(tenant_id, resource)
            raise

    async def leave_conversation(self, tenant_id: str, resource: ResponseResource) -> None:
        """Let others run in a response's conversation; harmless when repeated."""
        if resource.conversation is not None:
            await self._running.release(tenant_id, resource.conversation["id"], resource.id)

    async def load(self, tenant: Tenant, response_id: str) -> bytes:
        """A tenant's response as JSON, as it runs in another process or as it has ended.

        One whose process is gone has failed. Raises `ApiError` 404 and `StoreUnavailable`.
        """
        try:
            running = await self._find_running(tenant, response_id)
        except StoreUnavailable:
            running = None  # what has ended may be known here
        return running or (await self._ended(tenant.id, response_id)).response

    async def runs_elsewhere(self, tenant: Tenant, response_id: str) -> bool:
        """Whether a response runs in another process. Raises `StoreUnavailable`."""
        return await self._find_running(tenant, response_id) is not None

    async def no_stream(self, tenant: Tenant, response_id: str) -> ApiError:
        """Why the events of a response cannot be read here. Raises `StoreUnavailable`."""
        if await self.runs_elsewhere(tenant, response_id):
            return response_runs_elsewhere(response_id)
        turn = await self._history.load(tenant.id, response_id)
        if turn is not None and msgspec.json.decode(turn.response, type=_Ended).error == _LOST:
            return response_lost(response_id)
        return response_not_found(response_id)

    async def cancel_elsewhere(
        self, tenant: Tenant, response_id: str, patience_seconds: float
    ) -> bytes:
        """End a response that runs in another process; as it is then, or after so long.

        One that runs nowhere is returned unchanged where it was cancelled. Raises what `load`
        raises, and `ApiError` 400 for one that has come to another end.
        """
        running = await self._find_running(tenant, response_id)
        if running is None:
            response = (await self._ended(tenant.id, response_id)).response
            _check_cancelled(response)
            return response
        await self._running.ask_to_cancel(tenant.id, response_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                while await self._find_running(tenant, response_id) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)
                # An earlier end of it, before it was gone on with, may be remembered here.
                self._history.forget(tenant.id, response_id)
                return (await self._ended(tenant.id, response_id)).response
        return running

    async def input_of(self, tenant_id: str, response_id: str) -> bytes:
        """The items of a finished response's request, as JSON. Raises what `load` raises."""
        return (await self._ended(tenant_id, response_id)).input or b"[]"

    async def cancel_suspended(self, tenant: Tenant, response_id: str) -> None:
        """Have nobody go on with a suspended response, if this is one: it is cancelled.

        Raises `StoreUnavailable`.
        """
        if await self.take_suspended(tenant.id, response_id) is None:
            return
        # An end of it before the last one may be remembered here.
        self._history.forget(tenant.id, response_id)
        turn = await self._history.load(tenant.id, response_id)
        if turn is not None:
            response = msgspec.json.decode(turn.response)
            response |= {"status": "cancelled", "incomplete_details": None}
            turn = msgspec.structs.replace(turn, response=msgspec.json.encode(response))
            await self._history.save(tenant, response_id, turn)

    async def delete(self, tenant_id: str, response_id: str) -> bool:
        """Forget a response that has ended or is suspended, everywhere; whether there was one.

        Raises `StoreUnavailable`.
        """
        suspended = await self.take_suspended(tenant_id, response_id)
        return await self._history.delete(tenant_id, response_id) or suspended is not None

    async def _find_running(self, tenant: Tenant, response_id: str) -> bytes | None:
        """A response that runs in any process, as JSON. Raises `StoreUnavailable`.

        One whose process is gone is failed, and kept as such.
        """
        found = await self._running.find(tenant.id, response_id)
        if found is None:
            return None
        try:
            response = bytes(msgspec.json.decode(found.content, type=msgspec.Raw))
        except (msgspec.DecodeError, ValueError) as error:
            _log.error("a stored record is not read: %s runs as no JSON: %s", response_id, error)
            return None
        if found.runs:
            return response
        await self._keep_lost(tenant, response_id, response)
        await self._running.forget(tenant.id, response_id)
        return None

    async def _keep_lost(self, tenant: Tenant, response_id: str, begun: bytes) -> None:
        """A response has failed that its process has `begun`, unless that one had kept its end, or
        what it takes to go on with it.
        """
        self._history.forget(tenant.id, response_id)
        turn = await self._history.load(tenant.id, response_id)
        if turn is not None and INTERRUPTED not in turn.response:
            return
        ended: dict[str, object] = _HAS_FAILED
        if await self._suspended.holds(tenant.id, response_id):
            if turn is not None:
                return  # it has been given up in good order, and only its record stayed
            ended = _IS_INTERRUPTED
        else:
            _log.warning("response %s has failed: its process is gone", response_id)
        turn = turn or Turn(
            packed_ids=b"",
            shared_tokens=0,
            shared_owner=tenant.id,
            system=None,
            end_user=None,
            response=begun,
        )
        response = msgspec.json.encode(msgspec.json.decode(turn.response) | ended)
        turn = msgspec.structs.replace(turn, packed_ids=b"", response=response)
        await self._history.save(tenant, response_id, turn)

    async def _ended(self, tenant_id: str, response_id: str) -> Turn:
        turn = await self._history.load(tenant_id, response_id)
        if turn is None:
            raise response_not_found(response_id)
        return turn

    async def keep(
        self,
        tenant: Tenant,
        renderer: ResponseRenderer,
        generation: Generation,
        on_socket: SocketHistory | None,
    ) -> None:
        """Keep a response as it has ended, and what was said in its conversation."""
        resource = renderer.resource
        if resource.conversation is not None:
            await self._keep_said(tenant, renderer, generation)
        prompt, failed = generation.prompt, resource.status == "failed"
        said = prompt.said
        ids = prompt.ids + generation.line.output_ids if said is None else said
        answered = asides_of(len(prompt.ids), prompt.opened, generation.line.asides)
        turn = Turn(
            packed_ids=b"" if failed else pack_ids(ids),
            shared_tokens=prompt.shared_tokens,
            shared_owner=prompt.shared_owner,
            system=prompt.system,
            end_user=prompt.end_user,
            response=encode_json(resource),
            origin=prompt.origin,
            starts=prompt.starts,
            input=renderer.input,
            tools=prompt.tools,
            asides=[*prompt.asides, *(answered if said is None else ())],
            breakpoints=prompt.breakpoints,
            is_unanswered=said is not None,
            segments=prompt.segments,
            context=prompt.context,
            pictures=prompt.pictures,
        )
        if resource.store:
            await self._history.save(tenant, resource.id, turn)
        elif on_socket is not None:
            on_socket.save(resource.id, turn)

    async def _keep_said(
        self, tenant: Tenant, renderer: ResponseRenderer, generation: Generation
    ) -> None:
        """What was said goes to the conversation where the answer is one, if cut off: whoever has
        cancelled it, sees it fail, or wants none yet, will ask again. Then others may run in it.
        """
        resource = renderer.resource
        assert resource.conversation is not None
        if generation.outcome in ("stop", "length") and generation.prompt.said is None:
            output = encode_json(resource.output)
            work = partial(kept_items, renderer.input, output)
            short = len(renderer.input) + len(output) <= INLINE_BYTES
            items = work() if short else await self._workers.run(tenant.id, work)
            await self._conversations.append(
                tenant, resource.conversation["id"], items, generation.prompt.end_user
            )
        await self.leave_conversation(tenant.id, resource)

    async def suspend(
        self,
        tenant: Tenant,
        renderer: ResponseRenderer,
        generation: Generation,
        events: Sequence[bytes | None],
    ) -> bool:
        """Keep what is needed to go on in another process; whether that was possible."""
        if not renderer.resource.store:
            return False
        blob = msgspec.msgpack.encode(SuspendedRun.of(renderer, generation, events))
        try:
            await self.put_back(tenant, renderer.resource.id, blob)
        except (StoreUnavailable, TooLargeToStore) as error:
            _log.warning("response %s cannot be resumed: %s", renderer.resource.id, error)
            return False
        return True

    async def take_suspended(self, tenant_id: str, response_id: str) -> bytes | None:
        """A suspended response's blob, which is then nobody else's. Raises `StoreUnavailable`."""
        return await self._suspended.take(tenant_id, response_id)

    async def put_back(self, tenant: Tenant, response_id: str, blob: bytes) -> None:
        """Let somebody else go on with a suspended response. Raises `StoreError`."""
        await self._suspended.save(
            tenant.id,
            response_id,
            blob,
            self._suspended_ttl_seconds,
            tenant.limits.stored_bytes,
            tenant.generation,
        )


class _Ended(msgspec.Struct):
    """What is read of a response that has ended."""

    status: Status
    error: ResponseFailure | None = None


def _check_cancelled(response: bytes) -> None:
    """Raises `ApiError` 400 for a response that ended before it could be cancelled."""
    status = msgspec.json.decode(response, type=_Ended).status
    if status != "cancelled":
        raise invalid_request(f"Cannot cancel a response that is {status}.", "response_id")
