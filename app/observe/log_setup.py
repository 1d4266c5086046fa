"""How the service's own process logs, and one of Ray's that has an engine."""

from __future__ import annotations

import logging
import sys
from typing import Final, TextIO

from app.observe.log_writer import LineWriter
from app.observe.request_fields import add_request
from engine.config import EngineConfig, LogFormat, LogLevel
from engine.logs import line_formatter, log_process, log_through

_RAYS: Final = ("ray", "ray.serve")


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
