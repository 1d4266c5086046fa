"""How the processes of a service log: structlog renders each line, as JSON or for people.

Modules log through `logging`, with `extra` for the fields of a line; so do the libraries they use.
"""

from __future__ import annotations

import logging
import re
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from engine.config import LogFormat, LogLevel

OURS = ("app", "engine", "kernels", "tenants")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def line_formatter(form: LogFormat, stream: TextIO, *adding: Processor) -> logging.Formatter:
    """One line (and, as text, a traceback) a record, for `stream`; `adding` gives them fields."""
    is_terminal = stream.isatty()
    as_json = form == "json" or (form == "auto" and not is_terminal)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            _without_ray,
            *adding,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *(_as_json() if as_json else _as_text(is_terminal)),
        ],
    )


def _without_ray(
    _: structlog.typing.WrappedLogger, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Leave out what Ray adds to every record of a process that has it."""
    return {name: value for name, value in event.items() if not name.startswith("_ray_")}


def log_through(handler: logging.Handler, level: LogLevel) -> None:
    """Have this process log through `handler`: its own lines from `level` on, and what libraries
    warn of.
    """
    least = logging.getLevelName(level.upper())
    for name in OURS:
        logging.getLogger(name).setLevel(least)
    root = logging.getLogger()
    root.setLevel(max(least, logging.WARNING))
    root.addHandler(handler)


def log_process(name: str, form: LogFormat, level: LogLevel, stream: TextIO) -> None:
    """Have a process beside the service log to `stream`, with its `name` in every line."""

    def add_name(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
        line["process"] = name
        return line

    handler = logging.StreamHandler(stream)
    handler.setFormatter(line_formatter(form, stream, add_name))
    log_through(handler, level)


def _as_json() -> list[Processor]:
    def encode(line: EventDict, **_: Any) -> str:
        return msgspec.json.encode(line, enc_hook=str).decode()

    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(encode)]


def _as_text(is_terminal: bool) -> list[Processor]:
    # Tracebacks as Python prints them: structlog's others show variables, and so prompts and keys.
    console = structlog.dev.ConsoleRenderer(
        colors=is_terminal,
        pad_event_to=0,
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return [_in_one_line, console]


def _in_one_line(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Nothing that a client has chosen begins a line of its own, or colours a terminal."""
    for name, value in line.items():
        if isinstance(value, str):
            line[name] = _CONTROL.sub(lambda found: repr(found[0])[1:-1], value)
    return line
