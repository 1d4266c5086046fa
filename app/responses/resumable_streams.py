"""Streams that have ended and can be read again for a while: so many bytes of them, oldest go."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from app.shares import SHARES


class EndedStream(Protocol):
    """A stream whose events are kept."""

    @property
    def tenant_id(self) -> str:
        """Whose it is."""
        ...

    @property
    def num_event_bytes(self) -> int:
        """What its events take; the same at any time."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it now."""
        ...

    def drop(self) -> None:
        """Let go of the events: nobody can read them any more."""
        ...


class ResumableStreams:
    """The streams that have ended, in that order; together they have `max_bytes` of events.

    What is too much goes from the oldest on, and what nobody reads before what somebody does. The
    newest stays while its readers take the end of it, however long it is.
    """

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._share = max_bytes // SHARES
        self._streams: dict[EndedStream, None] = {}
        self._held: Counter[str] = Counter()

    def add(self, stream: EndedStream) -> None:
        """Keep a stream that ends now; others, or this one itself, may have to go for it."""
        self._streams[stream] = None
        self._held[stream.tenant_id] += stream.num_event_bytes
        self._shrink(stream, stream.tenant_id, self._share)
        self._shrink(stream, None, self._room)

    def remove(self, stream: EndedStream) -> None:
        """The stream is kept no longer; harmless for one that is not."""
        if stream in self._streams:
            del self._streams[stream]
            self._held[stream.tenant_id] -= stream.num_event_bytes
            if not self._held[stream.tenant_id]:
                del self._held[stream.tenant_id]

    def _shrink(self, newest: EndedStream, tenant_id: str | None, max_bytes: int) -> None:
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
