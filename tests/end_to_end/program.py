"""The program `partywall` as processes: a service, and the commands beside it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from app import cli

PROGRAM = [sys.executable, "-m", "app.cli"]
# On a machine that other programs keep busy.
START_SECONDS = 240
STOP_SECONDS = 60


@dataclass
class Started:
    """A service process, and what it told at its start."""

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    ready_mode: int
    log: Path

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def admin_url(self) -> str:
        return str(self.ready["admin_url"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


def start(
    folder: Path, *options: str, program: Sequence[str] = PROGRAM, cwd: Path | None = None
) -> Started:
    """`partywall serve` with its data in `folder`, once it is ready."""
    ready, log = folder / "ready.json", folder / "log"
    ready.unlink(missing_ok=True)
    command = [*program, "serve", "--port", "0", "--data-dir", str(folder / "data")]
    command += ["--ready-file", str(ready), "--kv-memory", "64MiB", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=cwd)
    deadline = time.monotonic() + START_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(log.read_text())
        time.sleep(0.02)
    mode = stat.S_IMODE(ready.stat().st_mode)
    return Started(process, json.loads(ready.read_text()), mode, log)


class CommandLine:
    """The `partywall` commands on the store of one data folder.

    They run in this process, but for `serve`: to start Python and import what a command needs takes
    longer than what it does. That each is a program is shown by the commands of the docs.
    """

    def __init__(self, data_dir: Path) -> None:
        self._environment = {"PARTYWALL_DATA_DIR": str(data_dir), "COLUMNS": "200"}

    def __call__(self, *arguments: str, text: str = "", status: int = 0) -> str:
        """What was printed on both streams; the exit status must be `status`."""
        run = _run_apart if arguments[0] == "serve" else _run_here
        with mock.patch.dict(os.environ, self._environment):
            ended, printed = run(arguments, text)
        assert ended == status, printed
        assert "Traceback" not in printed
        return printed

    def read(self, *arguments: str) -> Any:
        """The output of a command with `--json`."""
        return json.loads(self(*arguments, "--json"))


def _run_apart(arguments: Sequence[str], text: str) -> tuple[int, str]:
    command = [*PROGRAM, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def _run_here(arguments: Sequence[str], text: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["partywall", *arguments]),
        mock.patch.object(sys, "stdin", io.StringIO(text)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            status = 0
        except SystemExit as exit_:
            status = int(exit_.code or 0)
    return status, out.getvalue() + err.getvalue()


def chat(url: str, api_key: str, question: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "chat", "--url", url, "--api-key", api_key, "--max-output-tokens", "8"]
    return subprocess.run(
        [*command, *options], input=question, capture_output=True, text=True, timeout=120
    )
