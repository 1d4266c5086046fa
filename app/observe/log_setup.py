"""How the service's own process logs, and one of Ray's that has an engine.

Its reader may be slow: lines are written in a thread of their own.
"""

from __future__ import annotations

import logging
import sys
import threading
from queue import SimpleQueue
from typing import Final, TextIO

from app.observe.request_fields import add_request, masked
from engine.config import EngineConfig, LogFormat, LogLevel
from engine.logs import line_formatter, log_process, log_through

_RAYS: Final = ("ray", "ray.serve")
_MAX_WAITING_CHARACTERS = 4 << 20
_LAST_WORDS_SECONDS = 2.0


def log_to(stream: TextIO, form: LogFormat = "auto", level: LogLevel = "info") -> LineWriter:
    """Log to `stream`; lines carry the request or the socket that they belong to."""
    writer = LineWriter(stream)
    writer.setFormatter(line_formatter(form, stream, add_request))
    log_through(writer, level)
    return writer


def take_over_ray() -> None:
    """Have Ray's lines come as ours do, from warnings on; for a process that has imported it."""
    for name in _RAYS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def log_replica(config: EngineConfig) -> None:
    """How a process of Ray's logs that has an engine of this `config`."""
    take_over_ray()
    # Serve has put its own log in the place of `sys.stderr`.
    stream = sys.__stderr__ or sys.stderr
    log_process("replica", config.log_format, config.log_level, stream)


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
