from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from app.observe.log_setup import LineWriter, log_to
from engine.logs import OURS
from tests.app.conftest import eventually


class Log:
    """What a service logs, as `partywall serve` has it where there is no terminal."""

    def __init__(self, stream: io.StringIO, writer: LineWriter) -> None:
        self._stream = stream
        self._writer = writer

    @property
    def text(self) -> str:
        self._writer.flush()
        return self._stream.getvalue()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Those of this event so far."""
        lines = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in lines if line["event"] == event]

    async def line(self, event: str, number: int = 1) -> dict[str, Any]:
        """The line of that number, once there is one: an answer may come before its line."""
        await eventually(lambda: len(self.lines(event)) >= number)
        return self.lines(event)[number - 1]


@pytest.fixture
def log() -> Iterator[Log]:
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, OURS)]
    before = [one.level for one in loggers]
    stream = io.StringIO()
    writer = log_to(stream)
    yield Log(stream, writer)
    root.removeHandler(writer)
    writer.close()
    for one, level in zip(loggers, before, strict=True):
        one.setLevel(level)
