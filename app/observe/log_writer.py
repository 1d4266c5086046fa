"""A log whose reader may be slow: lines are written in a thread of their own."""

from __future__ import annotations

import logging
import re
import threading
from queue import SimpleQueue
from typing import TextIO

_MAX_WAITING_CHARACTERS = 4 << 20
_LAST_WORDS_SECONDS = 2.0
_SECRET = re.compile(
    r"(pw(?:admin)?_(?:[0-9a-f]{16}\.)?)[A-Za-z0-9_-]{24,}"  # an id may be told
    r"|(eyJ)[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"  # a JSON Web Token
)
"""Keys and tokens that stand where none belongs, such as a path, are in no line of the log."""


class LineWriter(logging.Handler):
    """Renders lines where they are logged, and never waits for `stream`.

    Lines that find no room among those that wait are dropped; how many, the log says later.
    """

    def __init__(self, stream: TextIO, max_waiting_characters: int = _MAX_WAITING_CHARACTERS):
        super().__init__()
        self._stream = stream
        self._room = max_waiting_characters
        self._dropped = 0
        self._counting = threading.Lock()  # not the handler's own, which is held while it closes
        self._lines: SimpleQueue[str | threading.Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have the record's line written, if there is room for it."""
        try:
            line = masked(self.format(record)) + "\n"
        except Exception:  # noqa: BLE001 - whoever logs is not to fail for it
            self.handleError(record)
            return
        with self._counting:
            if len(line) > self._room:
                self._dropped += 1
                return
            self._room -= len(line)
        self._lines.put(line)

    def flush(self) -> None:
        """Wait until everything so far is written, but not for ever."""
        if self._thread.is_alive():
            written = threading.Event()
            self._lines.put(written)
            written.wait(_LAST_WORDS_SECONDS)

    def close(self) -> None:
        """Write the rest, if that is possible soon, and end."""
        self._lines.put(None)
        self._thread.join(_LAST_WORDS_SECONDS)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
                continue
            self._put(line)
            with self._counting:
                self._room += len(line)
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self._put(self.format(_loss(dropped)) + "\n")

    def _put(self, line: str) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads the log any more, and there is nobody else to tell


def _loss(count: int) -> logging.LogRecord:
    message = "%d lines were dropped: the log is not read fast enough"
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, (count,), None)


def masked(text: str) -> str:
    """`text` with `***` for the secret part of what looks like an API key or a token."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", text)
