"""Lines are written beside the event loop; a log that nobody reads holds nobody up."""

from __future__ import annotations

import io
import logging
import threading

import pytest

from app.observe.log_setup import LineWriter


class Stuck(io.StringIO):
    """Takes nothing until it is freed; `reached` once somebody waits for that."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.freed = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.freed.wait(30)
        return super().write(text)


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("app", logging.INFO, __file__, 1, message, None, None)


def test_lines_come_in_order() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    for number in range(1000):
        writer.handle(record(str(number)))
    writer.close()
    assert stream.getvalue().split() == [str(number) for number in range(1000)]


def test_what_finds_no_room_is_dropped_and_counted() -> None:
    stream = Stuck()
    writer = LineWriter(stream, max_waiting_characters=10)
    writer.handle(record("first"))
    assert stream.reached.wait(10)
    for message in ("next", "none", "nor this"):
        writer.handle(record(message))
    stream.freed.set()
    writer.flush()
    writer.handle(record("again"))
    writer.close()
    first, told, *rest = stream.getvalue().splitlines()
    assert (first, rest) == ("first", ["again"])
    assert told == "3 lines were dropped: the log is not read fast enough"


def test_a_stream_that_is_closed_ends_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    stream.close()
    writer.handle(record("unheard"))
    writer.close()
    assert capsys.readouterr() == ("", "")
