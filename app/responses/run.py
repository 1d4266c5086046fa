"""One running response, which writes its stream, whoever reads it; and streams that have ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from app.generation.generation import Generation
from app.observe.metrics import Metrics
from app.prompt.history import SocketHistory
from app.responses.event_log import EventLog, EventsGone, Reader
from app.responses.render import ResponseRenderer
from app.responses.sequence_numbers import check_position, numbered
from app.responses.store import ResponseStore
from app.shares import SHARES
from app.wire.errors import internal_error, response_not_found
from app.wire.events import Event, ResponseResource, encode_json
from tenants.records import Tenant

_log = logging.getLogger(__name__)


class ResponseRun:
    """A response whose stream is written to a log as it comes. Readers may leave and come back.

    Left alone for `grace_seconds` it is cancelled, but for one in the background, or forgotten once
    it has ended, or earlier where `kept` has no room for it. Its stream ends with exactly one
    terminal event, whatever ends it. `events` are those of an earlier process.
    """

    def __init__(
        self,
        tenant: Tenant,
        renderer: ResponseRenderer,
        generation: Generation,
        store: ResponseStore,
        on_socket: SocketHistory | None,
        metrics: Metrics,
        kept: ResumableStreams,
        grace_seconds: float,
        forget: Callable[[ResponseRun], None],
        events: Sequence[bytes | None] = (),
    ) -> None:
        self._tenant = tenant
        self.renderer = renderer
        self.generation = generation
        self._store = store
        self._on_socket = on_socket
        self._metrics = metrics
        self._kept = kept
        self._tell_forgotten = forget
        self._discarded = False
        self._ended = asyncio.Event()
        self._stream = EventLog(grace_seconds, self._abandoned, events)
        self._writing: asyncio.Task[None] | None = None

    @property
    def resource(self) -> ResponseResource:
        """The response so far."""
        return self.renderer.resource

    @property
    def tenant_id(self) -> str:
        """Whose it is."""
        return self._tenant.id

    @property
    def num_event_bytes(self) -> int:
        """The length of all its events so far."""
        return self._stream.num_bytes

    @property
    def is_read(self) -> bool:
        """Whether anybody reads its stream."""
        return self._stream.is_read

    @property
    def headers(self) -> Mapping[str, str]:
        """What goes with the answer to the request that has started it."""
        return self.generation.ticket.headers

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been written."""
        return self._ended.is_set()

    def start(self) -> None:
        """Begin to write."""
        self._store.note_begin(self._tenant.id, self.resource)
        self._writing = asyncio.create_task(self._write())

    def snapshot(self) -> bytes:
        """The response so far, as JSON."""
        return encode_json(self.resource)

    def follow(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The encoded events with numbers greater than `after`, as they come.

        Raises `ApiError` for a number that no event has had yet; iterating raises one, 404, where
        events are dropped before they are read.
        """
        check_position(after, self._stream.next_number)
        return self._follow(after)

    async def feed(self, after: int, reader: Reader) -> None:
        """Give `reader` those events as they come, to the end. Raises what `follow` raises."""
        check_position(after, self._stream.next_number)
        try:
            await self._stream.feed(after, reader)
        except EventsGone:
            raise response_not_found(self.resource.id) from None

    def cancel(self) -> None:
        """End the response here; its stream goes on to its terminal event."""
        self.generation.cancel()

    def suspend(self) -> None:
        """End it here, so that another process can go on with it if it may be stored."""
        self.generation.suspend()

    def discard(self) -> None:
        """Nobody will read on: cancel it if it still runs, and forget it once it has ended."""
        self._discarded = True
        self._stream.close()
        if self.ended:
            self._forget()
        else:
            self.cancel()

    def drop(self) -> None:
        """Forget it, which has ended, whoever still reads."""
        self._stream.drop()
        self._forget()

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
            await self.generation.spoil(internal_error())
            self._append(self.renderer.end(self.generation))
        finally:
            self._store.note_end(self._tenant.id, self.resource.id)
            self._stream.end()
            self._ended.set()
            if self._discarded:
                self._forget()
            else:
                self._kept.add(self)
            await self._store.leave_conversation(self._tenant.id, self.resource)

    async def _generate(self) -> None:
        if not self._stream.next_number:
            self._append(*self.renderer.opening())
        for of_item in self.renderer.logprobs:
            self.generation.keep(of_item)
        async with aclosing(self.generation.pieces()) as pieces:
            async for piece in pieces:
                self._append(*self.renderer.growth(piece, self.generation))
                self.generation.keep(piece.logprobs)

    async def _finish(self) -> None:
        generation = self.generation
        suspended = generation.outcome == "suspended" and await self._store.suspend(
            self._tenant, self.renderer, generation, self._stream.events
        )
        # A message that will go on elsewhere is not closed: nobody sees it end twice.
        if not suspended:
            for piece in generation.rest():
                self._append(*self.renderer.growth(piece, self.generation))
            self._append(*self.renderer.closing(generation))
        terminal = self.renderer.end(generation)
        self._metrics.requests.labels("responses", self.resource.status).inc()
        await self._store.keep(self._tenant, self.renderer, generation, self._on_socket)
        self._append(terminal)

    def _append(self, *events: Event) -> None:
        for event in events:
            self._stream.append(numbered(event, self._stream.next_number))

    async def _follow(self, after: int) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._stream.follow(after)) as events:
            try:
                async for event in events:
                    yield event
            except EventsGone:
                raise response_not_found(self.resource.id) from None

    def _forget(self) -> None:
        self._kept.remove(self)
        self._tell_forgotten(self)

    def _abandoned(self) -> None:
        if self.ended:
            self.discard()
        elif not self.resource.background:
            self.cancel()


class ResumableStreams:
    """The streams that have ended, in that order; together they have `max_bytes` of events.

    What is too much goes from the oldest on, and what nobody reads before what somebody does. The
    newest stays while its readers take the end of it, however long it is.
    """

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._share = max_bytes // SHARES
        self._streams: dict[ResponseRun, None] = {}
        self._held: Counter[str] = Counter()

    def add(self, stream: ResponseRun) -> None:
        """Keep a stream that ends now; others, or this one itself, may have to go for it."""
        self._streams[stream] = None
        self._held[stream.tenant_id] += stream.num_event_bytes
        self._shrink(stream, stream.tenant_id, self._share)
        self._shrink(stream, None, self._room)

    def remove(self, stream: ResponseRun) -> None:
        """The stream is kept no longer; harmless for one that is not."""
        if stream in self._streams:
            del self._streams[stream]
            self._held[stream.tenant_id] -= stream.num_event_bytes
            if not self._held[stream.tenant_id]:
                del self._held[stream.tenant_id]

    def _shrink(self, newest: ResponseRun, tenant_id: str | None, max_bytes: int) -> None:
        """Drop streams, of one tenant or of anybody, until no more than `max_bytes` are held."""
        if self._num_held(tenant_id) <= max_bytes:
            return
        mine = [one for one in self._streams if tenant_id in (None, one.tenant_id)]
        oldest_first = [one for one in mine if not one.is_read]
        oldest_first += [one for one in mine if one.is_read and one is not newest]
        for stream in oldest_first:
            self.remove(stream)
            stream.drop()
            if self._num_held(tenant_id) <= max_bytes:
                return

    def _num_held(self, tenant_id: str | None) -> int:
        return self._held.total() if tenant_id is None else self._held[tenant_id]
