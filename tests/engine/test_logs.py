"""Lines as JSON, and as people read them."""

from __future__ import annotations

import io
import json
import logging
import sys

from engine.logs import line_formatter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def failed(message: str) -> logging.LogRecord:
    """What is logged where `secret` was at hand."""
    try:
        secret = "marzipan"
        raise LookupError(len(secret))
    except LookupError:
        return logging.LogRecord(
            "app.x", logging.ERROR, __file__, 1, message, ("oven",), sys.exc_info()
        )


def test_json_is_one_line_with_the_traceback_in_it() -> None:
    line = line_formatter("auto", io.StringIO()).format(failed("the %s\nfailed"))
    told = json.loads(line)
    assert "\n" not in line
    assert (told["event"], told["level"], told["logger"]) == ("the oven\nfailed", "error", "app.x")
    assert told["exception"].endswith("LookupError: 8")
    assert told["timestamp"].endswith("Z")


def test_text_shows_what_is_found_on_the_way_but_no_variables() -> None:
    line = line_formatter("text", io.StringIO()).format(failed("the %s failed"))
    first, *traceback = line.splitlines()
    assert "[error" in first
    assert "the oven failed" in first
    assert traceback[-1] == "LookupError: 8"
    assert "marzipan" not in line


def test_nothing_in_a_line_begins_another_one_or_colours_a_terminal() -> None:
    record = failed("GET %s failed")
    record.exc_info = None
    record.args = ("/\n2026 [error] forged \x1b[31m",)
    record.path = "\x1b[2J"
    text = line_formatter("text", io.StringIO()).format(record)
    assert "\\n2026" in text
    assert "\n" not in text
    assert "\x1b" not in text


def test_a_terminal_gets_text_in_colours_unless_json_is_asked_for() -> None:
    record = failed("the %s")
    record.exc_info = None
    assert "\x1b[" in line_formatter("auto", Terminal()).format(record)
    assert json.loads(line_formatter("json", Terminal()).format(record))["event"] == "the oven"


def test_what_ray_adds_to_records_is_left_out() -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "said", (), None)
    record.__dict__ |= {"_ray_timestamp_ns": 5, "tenant": "acme"}
    told = json.loads(line_formatter("json", io.StringIO()).format(record))
    assert told["tenant"] == "acme"
    assert "_ray_timestamp_ns" not in told
