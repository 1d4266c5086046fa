"""One running response: it writes its stream, whoever reads it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from app.generate.generation import Generation
from app.prompt.history import History, SocketHistory, Turn, pack_ids
from app.prompt.turns import Prompt
from app.responses.answer import Answer
from app.responses.event_log import Reader, StreamLog
from app.responses.suspension import SuspendedRun
from app.upkeep.connections import Presence
from app.upkeep.metrics import Metrics
from app.wire.errors import ApiError, internal_error, invalid_request
from app.wire.events import Event, ResponseResource, encode_json
from tenants.errors import StoreUnavailable
from tenants.records import Principal
from tenants.suspended import SuspendedResponses

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """Where a response is kept: with its tenant, with its socket, or nowhere."""

    history: History
    socket_history: SocketHistory | None
    suspended: SuspendedResponses
    suspended_ttl_seconds: float
    tenant_id: str
    end_user: str | None
    prompt: Prompt
    engine: bytes

    async def keep(self, resource: ResponseResource, output_ids: list[int]) -> None:
        """Keep a response as it has ended."""
        failed = resource.status == "failed"
        turn = Turn(
            packed_ids=b"" if failed else pack_ids(self.prompt.ids + output_ids),
            shared_tokens=self.prompt.shared_tokens,
            shared_owner=self.prompt.shared_owner,
            system=self.prompt.system,
            end_user=self.end_user,
            response=encode_json(resource),
        )
        if resource.store:
            await self.history.save(self.tenant_id, resource.id, turn)
        elif self.socket_history is not None:
            self.socket_history.save(resource.id, turn)

    async def suspend(self, answer: Answer, generation: Generation, log: StreamLog) -> bool:
        """Keep what is needed to go on in another process; whether that was possible."""
        if not answer.resource.store:
            return False
        kept = SuspendedRun.of(
            answer,
            generation,
            prompt=self.prompt,
            end_user=self.end_user,
            engine=self.engine,
            events=log.events,
        )
        response_id = answer.resource.id
        try:
            await self.suspended.save(
                self.tenant_id, response_id, kept.encode(), self.suspended_ttl_seconds
            )
        except StoreUnavailable:
            _log.warning("response %s cannot be resumed: the store is down", response_id)
            return False
        return True


class ResponseRun:
    """A response whose stream is written to a log as it comes. Readers may leave and come back.

    Left alone for `grace_seconds` it is cancelled, or forgotten once it has ended. Its stream ends
    with exactly one terminal event, whatever ends it. `events` are those of an earlier process.
    """

    def __init__(
        self,
        principal: Principal,
        answer: Answer,
        generation: Generation,
        keeper: Keeper,
        presence: Presence,
        metrics: Metrics,
        grace_seconds: float,
        forget: Callable[[], None],
        events: Sequence[bytes | None] = (),
    ) -> None:
        self._principal = principal
        self._answer = answer
        self._generation = generation
        self._keeper = keeper
        self._presence = presence
        self._metrics = metrics
        self._forget = forget
        self._discarded = False
        self._ended = asyncio.Event()
        self._stream = StreamLog(grace_seconds, self._abandoned, events)
        self._writing: asyncio.Task[None] | None = None

    @property
    def resource(self) -> ResponseResource:
        """The response so far."""
        return self._answer.resource

    @property
    def failure(self) -> ApiError | None:
        """What ended a failed response."""
        return self._generation.failure

    @property
    def headers(self) -> Mapping[str, str]:
        """What goes with the answer to the request that has started it."""
        return self._generation.ticket.headers

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been written."""
        return self._ended.is_set()

    def start(self) -> None:
        """Begin to write."""
        self._generation.start()
        self._writing = asyncio.create_task(self._write())

    def snapshot(self) -> bytes:
        """The response so far, as JSON."""
        return encode_json(self.resource)

    def follow(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The encoded events with numbers greater than `after`, as they come.

        Raises `ApiError` for a number that no event has had yet.
        """
        check_position(after, self._stream.next_number)
        return self._stream.follow(after)

    async def feed(self, after: int, reader: Reader) -> None:
        """Give `reader` those events as they come, to the end. Raises what `follow` raises."""
        check_position(after, self._stream.next_number)
        await self._stream.feed(after, reader)

    def cancel(self) -> None:
        """End the response here; its stream goes on to its terminal event."""
        self._generation.cancel()

    def suspend(self) -> None:
        """End it here, so that another process can go on with it if it may be stored."""
        self._generation.suspend()

    async def end(self, error: ApiError) -> None:
        """End it here with `error` in its terminal event; harmless after its end."""
        self._generation.fail(error)

    def discard(self) -> None:
        """Nobody will read on: cancel it if it still runs, and forget it once it has ended."""
        self._discarded = True
        self._stream.close()
        if self.ended:
            self._forget()
        else:
            self.cancel()

    async def settled(self, timeout_seconds: float | None = None) -> bytes:
        """The response as JSON after its end, or as it is after `timeout_seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._ended.wait()
        return self.snapshot()

    async def close(self) -> None:
        """Stop writing: the process ends."""
        self._stream.close()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})

    async def _write(self) -> None:
        try:
            await self._generate()
            await self._finish()
        except Exception:  # noqa: BLE001 - whatever bug ends a stream, its readers are told
            _log.exception("the stream of a response broke off")
            await self._generation.spoil(internal_error())
            self._append(self._answer.end(self._generation))
        finally:
            self._stream.end()
            self._ended.set()
            if self._discarded:
                self._forget()

    async def _generate(self) -> None:
        with self._presence.stream(self._principal, self):
            if not self._stream.next_number:
                self._append(*self._answer.opening())
            async with aclosing(self._generation.pieces()) as pieces:
                async for piece in pieces:
                    self._append(*self._answer.growth(piece))

    async def _finish(self) -> None:
        generation = self._generation
        suspended = generation.outcome == "suspended" and await self._keeper.suspend(
            self._answer, generation, self._stream
        )
        # A message that will go on elsewhere is not closed: nobody sees it end twice.
        if not suspended:
            for piece in generation.rest():
                self._append(*self._answer.growth(piece))
            self._append(*self._answer.closing(generation))
        terminal = self._answer.end(generation)
        self._metrics.requests.labels("responses", self.resource.status).inc()
        await self._keeper.keep(self.resource, generation.line.output_ids)
        self._append(terminal)

    def _append(self, *events: Event) -> None:
        for event in events:
            event.sequence_number = self._stream.next_number
            self._stream.append(encode_json(event))

    def _abandoned(self) -> None:
        self.discard() if self.ended else self.cancel()


def check_position(after: int, next_number: int) -> None:
    """Raises `ApiError` for the number of an event that has not been yet."""
    if after >= next_number:
        message = f"The last event so far has number {next_number - 1}."
        raise invalid_request(message, "starting_after")
