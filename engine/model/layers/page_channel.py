"""Pages that the first rank fills in another rank's memory, from thread to thread, beside steps.

The loop of the other rank may be behind, and has to do first what it was told before to do with
these pages. So the first rank puts a ticket among its orders, and pages are written once the loop
has come to that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from torch import Tensor

from engine.api import EngineBroken

Pages = Sequence[tuple[int, Tensor]]
"""Numbers of pages in a rank's memory, and what is to be in them: uint8 [bytes of a page]."""


class PageChannel:
    """The first rank's end; for any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, ticket: int, pages: Pages) -> None:
        """Returns when all are written. Raises `EngineBroken` where the rank has ended."""
        try:
            with self._lock:
                self._connection.send((ticket, [number for number, _ in pages]))
                for _, row in pages:
                    self._connection.send_bytes(row.numpy().data)
                self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise EngineBroken(f"the processes of one model fell apart: {error!r}") from error

    def close(self) -> None:
        """The other end is not listened to any more."""
        self._connection.close()


class Tickets:
    """Those that a rank's loop has come to."""

    def __init__(self) -> None:
        self._there: set[int] = set()
        self._changed = threading.Condition()

    def admit(self, ticket: int) -> None:
        """The loop has come to it."""
        with self._changed:
            self._there.add(ticket)
            self._changed.notify_all()

    def use(self, ticket: int) -> None:
        """Wait for it; it is used up."""
        with self._changed:
            self._changed.wait_for(lambda: ticket in self._there)
            self._there.remove(ticket)


def receive(connection: Connection, tickets: Tickets, page: Callable[[int], Tensor]) -> None:
    """Write pages, uint8 [bytes of a page] by their numbers, until the first rank ends."""
    while True:
        try:
            ticket, numbers = connection.recv()
            tickets.use(ticket)
            for number in numbers:
                connection.recv_bytes_into(page(number).numpy())
            connection.send_bytes(b"written")
        except (EOFError, OSError):
            return
