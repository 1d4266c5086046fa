"""What a start prints: secrets on a terminal alone, and elsewhere where they are."""

from __future__ import annotations

import io
import json
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.assembly.main import Welcome
from app.cli import serve
from app.settings import Settings

KEY, TOKEN = "pw_0123456789abcdef.secret-of-the-tenant", "pwadmin_secret-of-the-operator"


def told(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    *,
    is_terminal: bool = False,
    api_key: str | None = KEY,
    admin_token: str | None = TOKEN,
) -> str:
    """What is printed once a service is ready."""
    printed = io.StringIO()
    monkeypatch.setattr(printed, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", printed)
    what = Welcome(
        url="http://127.0.0.1:8000",
        admin_url="http://127.0.0.1:8001",
        pid=1,
        tenant="demo",
        api_key=api_key,
        admin_token=admin_token,
    )
    serve.tell(what, settings)
    return printed.getvalue()


def test_a_terminal_is_shown_the_secrets_once_and_no_file_holds_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    printed = told(monkeypatch, Settings(data_dir=tmp_path), is_terminal=True)
    assert printed.count(TOKEN) == 1
    assert f"--api-key {KEY}" in printed
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_terminal_is_told_a_private_file_and_a_line_that_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    printed = told(monkeypatch, Settings(data_dir=tmp_path / "it's data"))
    assert KEY not in printed
    assert TOKEN not in printed
    (file,) = (tmp_path / "it's data").iterdir()
    assert shlex.quote(str(file)) in printed
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    document = json.loads(file.read_text())
    assert (document["api_key"], document["admin_token"]) == (KEY, TOKEN)
    (line,) = (line for line in printed.splitlines() if " chat --url" in line)
    _, _, key = line.partition("--api-key ")
    read = subprocess.run(["sh", "-c", f"echo {key}"], capture_output=True, text=True, check=True)
    assert read.stdout.strip() == KEY


def test_a_ready_file_is_where_they_are_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ready = tmp_path / "ready.json"
    printed = told(monkeypatch, Settings(data_dir=tmp_path / "data", ready_file=ready))
    assert str(ready) in printed
    assert KEY not in printed
    assert json.loads(ready.read_text())["api_key"] == KEY
    assert not (tmp_path / "data").exists()


def test_a_later_start_says_what_to_do_with_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    told(monkeypatch, settings)
    (file,) = tmp_path.iterdir()
    later = told(monkeypatch, settings, api_key=None, admin_token=None)
    assert f"secrets are in {file}: delete it" in later
    assert json.loads(file.read_text())["api_key"] == KEY
    file.unlink()
    assert "delete it" not in told(monkeypatch, settings, api_key=None, admin_token=None)
