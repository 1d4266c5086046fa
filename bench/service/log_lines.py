"""What a line for each request costs: processor time, and how long it holds up who logs it.

Lines go through the service's own handler into a pipe that is read, in turns with a plain
`logging.StreamHandler` that writes the same ones; then into a pipe that nobody reads.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, thread_time
from typing import Final

from app.observe.log_lines import log_answer
from app.observe.log_setup import LineWriter
from app.observe.request_fields import begin_request
from bench.common.figures import percentile
from bench.registry import Result
from engine.logs import line_formatter

FIGURES: Final = {
    "us_per_line": "processor time of the event loop's thread for a line, median of the rounds, us",
    "held_us_p99": "how long a line holds up who logs it, 99th percentile, us",
    "plain_us_per_line": "the same as us_per_line with a handler that writes where it is called",
    "plain_held_us_p99": "the same as held_us_p99 with that one",
    "unread_held_ms_max": "the longest that a line has held up who logs it while nobody reads, ms",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--lines", type=int, default=5000, help="lines of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in turns")


def run(options: argparse.Namespace) -> Result:
    """Log to both handlers in turns, then to nobody."""
    own: list[tuple[float, list[float]]] = []
    plain: list[tuple[float, list[float]]] = []
    for _ in range(options.rounds):
        with _pipe(is_read=True) as stream:
            own.append(_logged(LineWriter(stream), stream, options.lines))
        with _pipe(is_read=True) as stream:
            plain.append(_logged(logging.StreamHandler(stream), stream, options.lines))
    with _pipe(is_read=False) as stream:
        _, unread = _logged(LineWriter(stream), stream, options.lines)
    figures = {
        "us_per_line": statistics.median(cost for cost, _ in own) * 1e6,
        "held_us_p99": statistics.median(percentile(held, 99) for _, held in own) * 1e6,
        "plain_us_per_line": statistics.median(cost for cost, _ in plain) * 1e6,
        "plain_held_us_p99": statistics.median(percentile(held, 99) for _, held in plain) * 1e6,
        "unread_held_ms_max": max(unread) * 1000,
    }
    return Result(figures)


def _logged(
    handler: logging.Handler, stream: io.TextIOWrapper, lines: int
) -> tuple[float, list[float]]:
    """Processor seconds of this thread for a line, and how long each one has held it up."""
    handler.setFormatter(line_formatter("json", stream))
    log = logging.getLogger("app.requests")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    context = begin_request(
        {"type": "http", "method": "POST", "path": "/v1/responses", "headers": []}
    )
    held = []
    began = thread_time()
    for _ in range(lines):
        start = perf_counter()
        log_answer(context, 200)
        held.append(perf_counter() - start)
    cost = (thread_time() - began) / lines
    log.removeHandler(handler)
    log.propagate = True
    handler.close()
    return cost, held


@contextmanager
def _pipe(*, is_read: bool) -> Iterator[io.TextIOWrapper]:
    """The end of a pipe to write to, line by line; its other end is read, or it is not."""
    reading, writing = os.pipe()

    def read() -> None:
        while os.read(reading, 1 << 16):
            pass

    reader = threading.Thread(target=read, daemon=True)
    if is_read:
        reader.start()
    stream = os.fdopen(writing, "w", buffering=1)
    try:
        yield stream
    finally:
        if is_read:
            stream.close()
            reader.join()
        os.close(reading)  # what still writes there is told that nobody reads
