"""How the service's own process logs."""

from __future__ import annotations

from typing import TextIO

from app.observe.log_writer import LineWriter
from app.observe.request_fields import add_request
from engine.config import LogFormat, LogLevel
from engine.logs import line_formatter, log_through


def log_to(stream: TextIO, form: LogFormat = "auto", level: LogLevel = "info") -> LineWriter:
    """Log to `stream`; lines carry the request or the socket that they belong to."""
    writer = LineWriter(stream)
    writer.setFormatter(line_formatter(form, stream, add_request))
    log_through(writer, level)
    return writer
