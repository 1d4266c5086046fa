"""A stream's events, kept and numbered so that its readers may leave and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

_REPLAYED_AT_ONCE = 64


class EventsGone(Exception):
    """The events that a reader has not had yet are kept no longer."""


class Reader(Protocol):
    """Whoever takes a stream's events, one after the other."""

    def offer(self, event: bytes) -> bool:
        """Take an event if that needs no waiting; whether it was taken. Raises nothing."""
        ...

    async def send(self, event: bytes) -> None:
        """Take an event as soon as possible."""
        ...


class _Follower:
    """A reader, the next event for it, and what resumes it once it is behind."""

    def __init__(self, reader: Reader, number: int) -> None:
        self.reader = reader
        self.number = number
        self.behind = asyncio.Event()


class EventLog:
    """Encoded events, numbered from 0. Any number of readers follow, each at a pace of its own.

    Once nobody has followed for `grace_seconds`, `abandoned` is called; it may be called again
    after later readers have left. `None` stands for an event that is not for replay.
    """

    def __init__(
        self,
        grace_seconds: float,
        abandoned: Callable[[], None],
        events: Sequence[bytes | None] = (),
    ) -> None:
        self.events = list(events)
        """Every event so far, by its number."""
        self.next_number = len(self.events)
        self.num_bytes = sum(len(event) for event in self.events if event is not None)
        self._ended = False
        self._news = asyncio.Event()
        self._live: list[_Follower] = []
        self._grace_seconds = grace_seconds
        self._abandoned: Callable[[], None] | None = abandoned
        self._readers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait_for_readers()

    @property
    def is_read(self) -> bool:
        """Whether anybody follows."""
        return self._readers > 0

    def append(self, event: bytes) -> None:
        """Add the next event: readers that keep up have it at once, the others are woken."""
        self.events.append(event)
        self.next_number += 1
        self.num_bytes += len(event)
        for follower in self._live.copy():
            if follower.reader.offer(event):
                follower.number += 1
            else:
                self._leave_behind(follower)
        self._wake()

    def end(self) -> None:
        """No more events will come: readers that have the last one are done."""
        self._ended = True
        for follower in self._live.copy():
            self._leave_behind(follower)
        self._wake()

    def close(self) -> None:
        """Call `abandoned` no more."""
        self._abandoned = None
        self._stop_timer()

    def drop(self) -> None:
        """Keep the events of a stream that has ended no longer: who is behind does not catch up."""
        self.close()
        self.events = []
        self._wake()

    async def feed(self, after: int, reader: Reader) -> None:
        """Give `reader` every event with a number greater than `after`, as they come, to the end.

        An event that it takes when offered has needed no turn of the event loop. Raises
        `EventsGone`.
        """
        follower = _Follower(reader, after + 1)
        with self._reading():
            while True:
                await self._catch_up(follower)
                if self._ended:
                    return
                follower.behind.clear()
                self._live.append(follower)
                try:
                    await follower.behind.wait()
                finally:
                    if follower in self._live:
                        self._live.remove(follower)

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Every event with a number greater than `after` (-1: all), as they come, to the end.

        A long replay lets others run, even where the reader takes everything at once. Raises
        `EventsGone`.
        """
        with self._reading():
            number = after + 1
            while True:
                while number < self.next_number:
                    event = self._kept(number)
                    number += 1
                    if event is not None:
                        yield event
                    if number % _REPLAYED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                if self._ended:
                    return
                await self._news.wait()

    async def _catch_up(self, follower: _Follower) -> None:
        """Give a reader all that there is; a long replay lets others run."""
        while follower.number < self.next_number:
            event = self._kept(follower.number)
            follower.number += 1
            if event is not None and not follower.reader.offer(event):
                await follower.reader.send(event)
            if follower.number % _REPLAYED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _kept(self, number: int) -> bytes | None:
        if not self.events:
            raise EventsGone
        return self.events[number]

    def _leave_behind(self, follower: _Follower) -> None:
        self._live.remove(follower)
        follower.behind.set()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._readers += 1
        self._stop_timer()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._wait_for_readers()

    def _wake(self) -> None:
        # A pulse: it resumes whoever waits now. The others look at the events before they wait.
        self._news.set()
        self._news.clear()

    def _wait_for_readers(self) -> None:
        if self._abandoned is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._grace_seconds, self._give_up)

    def _give_up(self) -> None:
        self._wait_for_readers()
        if self._abandoned is not None:
            self._abandoned()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
