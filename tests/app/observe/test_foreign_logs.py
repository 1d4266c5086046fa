"""Ray's lines in our log."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from app.observe.log_setup import log_replica, log_to, take_over_ray
from engine.config import EngineConfig
from engine.logs import OURS

NAMES = ("ray", "ray.serve")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Loggers are as Ray makes them while it is imported, and nobody else's afterwards."""
    pytest.importorskip("ray.serve", reason="needs the extra partywall[cluster]")
    root = logging.getLogger()
    handlers, loggers = list(root.handlers), [root, *map(logging.getLogger, OURS)]
    levels = [one.level for one in loggers]
    for name in NAMES:
        logger = logging.getLogger(name)
        logger.handlers[:] = [logging.StreamHandler(sys.stderr)]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    yield
    take_over_ray()
    root.handlers[:] = handlers
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)


def speak() -> None:
    logging.getLogger("ray.serve").info("Started Serve")
    logging.getLogger("ray._private.worker").warning("the %s is far", "head")
    logging.getLogger("ray.serve").error("no replica")


def lines(stream: io.StringIO) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [(one["logger"], one["level"], one["event"]) for one in found]


SAID = [
    ("ray._private.worker", "warning", "the head is far"),
    ("ray.serve", "error", "no replica"),
]


def test_what_ray_warns_of_comes_as_our_own_lines_and_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    writer = log_to(stream, "json")
    take_over_ray()
    speak()
    writer.flush()
    assert lines(stream) == SAID
    assert capsys.readouterr().err == ""
    writer.close()


def test_a_replica_logs_where_serve_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve._private.logging_utils import StreamToLogger

    stream = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stream)
    serve = logging.getLogger("ray.serve")
    redirected = StreamToLogger(serve, logging.INFO, sys.stderr)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(sys, "stderr", redirected)
    log_replica(EngineConfig(model_path="/model", log_format="json"))
    speak()
    assert lines(stream) == SAID
    assert {json.loads(line)["process"] for line in stream.getvalue().splitlines()} == {"replica"}
