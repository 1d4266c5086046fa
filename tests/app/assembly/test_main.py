"""The start of the service, and an end before it has started."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from app.assembly.main import _remove_what_is_not_kept
from app.assembly.parts import draft_folder, new_tracing
from app.settings import SettingsError, load_settings
from engine.disk.folder import Folder
from engine.model.weights import ModelUnavailable


def test_the_engine_can_be_started_before_the_service_s_own_modules_are_imported() -> None:
    """They take longer to import than everything else does; see `app.assembly.main.run_service`."""
    program = "import sys, app.assembly.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"app.assembly.service", "app.admin", "transformers", "torch"}.isdisjoint(
        done.stdout.split()
    )


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("module", ["typer", "pydantic_settings", "uvloop", "app.assembly.main"])
def test_a_start_that_is_stopped_at_any_time_ends_with_status_0(
    module: str, number: str, tmp_path: Path
) -> None:
    """The signal comes when `module` is about to be imported."""
    program = f"""
import os, signal, sys

class Stopping:
    def find_spec(self, name, *_):
        if name == {module!r}:
            print("asked to stop", flush=True)
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Stopping())
sys.argv = ["partywall", "serve", "--port", "0", "--data-dir", {str(tmp_path)!r}]
from app.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "asked to stop\n"
    assert done.stderr == "stopped before it was ready\n"


def test_a_draft_model_that_is_not_there_is_told_by_its_settings_name() -> None:
    settings = load_settings(speculation="draft", draft_model="/nowhere")
    with pytest.raises(ModelUnavailable, match="draft_model: /nowhere: there is no such folder"):
        draft_folder(settings, print)
    assert draft_folder(load_settings(), print) is None


def test_a_service_that_keeps_nothing_removes_what_another_has_kept(tmp_path: Path) -> None:
    owner = Folder(tmp_path / "kept").new_path("0" * 32, b"salt")
    for options in ({"kept_disk": 0}, {"prefix_cache": False}):
        owner.write_bytes(b"blocks")
        _remove_what_is_not_kept(load_settings(data_dir=tmp_path))
        assert owner.exists()
        _remove_what_is_not_kept(load_settings(data_dir=tmp_path, **options))
        assert not owner.parent.exists()
        owner.parent.mkdir()
    _remove_what_is_not_kept(load_settings(data_dir=tmp_path / "new", kept_disk=0))
    assert not (tmp_path / "new").exists()


async def test_there_are_traces_where_an_endpoint_is_given() -> None:
    async with contextlib.AsyncExitStack() as stack:
        assert new_tracing(load_settings(), "m", stack) is None
        given = load_settings(otlp_endpoint="http://127.0.0.1:4318")
        assert new_tracing(given, "m", stack) is not None


async def test_traces_without_their_extra_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "app.generation.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    given = load_settings(otlp_endpoint="http://127.0.0.1:4318")
    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(ValueError, match=r"otlp_endpoint: .*partywall\[otel\]"):
            new_tracing(given, "m", stack)


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "ftp://collector", "http://me@collector"])
def test_an_endpoint_is_an_address_that_can_be_sent_to(url: str) -> None:
    with pytest.raises(SettingsError, match="--otlp-endpoint"):
        load_settings(otlp_endpoint=url)
