"""Folders of sockets that killed processes have left: swept up, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.background.sweeping import sweep
from engine.serve.supervisor import RemoteEngine
from tenants.storage.embedded import EmbeddedStore

_OWNER = """
import asyncio, sys, time
from pathlib import Path
from engine.config import EngineConfig
from engine.assembly.process import ProcessEngine
from tenants.storage.embedded import EmbeddedStore

async def main():
    engine = ProcessEngine(EngineConfig(model_path="none"))
    store = EmbeddedStore(Path(sys.argv[1]))
    print("there", flush=True)
    time.sleep(60)

asyncio.run(main())
"""


def grow_old(parent: Path) -> list[Path]:
    """Make the folders old enough; returns them."""
    folders = sorted(parent.glob("partywall-*"))
    for folder in folders:
        os.utime(folder, (0, time.time() - 3600))
    return folders


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        yield Path(folder)


def test_folders_of_a_killed_process_go_and_those_of_a_living_one_stay(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "data")],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
    )
    try:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert len(grow_old(temporary)) == 2
        assert sweep(temporary) == 0
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    assert len(grow_old(temporary)) == 2
    other = temporary / "partywall-somebody-elses"
    other.mkdir()
    grow_old(temporary)
    assert sweep(temporary) == 2
    assert list(temporary.iterdir()) == [other], "it has no lock"
    # The store's folder is named after its data: it is made anew.
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with EmbeddedStore(tmp_path / "data"):
        grow_old(temporary)
        assert sweep(temporary) == 0
    assert list(temporary.iterdir()) == [other]


async def test_a_folder_that_is_just_being_made_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "partywall-new").mkdir()
    (tmp_path / "partywall-new" / "lock").touch()

    async def never(_: str) -> None:
        raise AssertionError

    engine = RemoteEngine(never)  # type: ignore[arg-type]
    assert sweep(tmp_path) == 0
    assert len(grow_old(tmp_path)) == 2
    assert sweep(tmp_path) == 1
    await engine.close()
    assert grow_old(tmp_path) == []
