"""The folder of kept files, whatever else lies there and whoever else opens it."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.disk import folder
from engine.disk.folder import Folder
from tests.engine.disk.simulated import kept_files, pin, save, start
from tests.engine.disk.test_keeper import BLOCKS, PROMPT, found

OTHER = "0" * 32


def test_what_is_no_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    (kept,) = kept_files(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"of somebody else")
    strange = [kept.with_stem(letter * 32) for letter in "abc"]
    os.mkfifo(strange[0])  # to open it would wait for a writer
    strange[1].mkdir()
    strange[2].symlink_to(elsewhere)
    (tmp_path / OTHER).symlink_to(kept.parent)
    with caplog.at_level(logging.WARNING):
        assert found(start(tmp_path)) == 4 * BLOCKS
    assert not caplog.records
    assert all(os.path.lexists(path) for path in strange)
    assert elsewhere.read_bytes() == b"of somebody else"


def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    (kept,) = kept_files(tmp_path)
    kept.unlink()
    os.mkfifo(kept)
    assert found(core) == 0


def test_who_opens_it_at_once_agrees_on_its_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(lambda _: Folder(tmp_path / "kept"), range(8)))
    assert len({folder.of_owner("a") for folder in folders}) == 1
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["secret"]


@pytest.mark.parametrize("lost", ["removed", "cut", "a link"])
def test_without_the_secret_owners_folders_go_and_nothing_else(tmp_path: Path, lost: str) -> None:
    root = tmp_path / "kept"
    former = Folder(root).of_owner("a")
    (root / former).mkdir()
    (root / "photos").mkdir()
    (root / OTHER).symlink_to(tmp_path)
    (root / "secret").unlink()
    if lost == "cut":
        (root / "secret").write_bytes(b"short")
    elif lost == "a link":
        (root / "secret").symlink_to(tmp_path / "nothing")
    now = Folder(root).of_owner("a")
    assert now != former
    assert Folder(root).of_owner("a") == now
    assert {path.name for path in root.iterdir()} == {"secret", "photos", OTHER}


def test_what_a_killed_writer_has_begun_is_removed_however_long_it_was_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Folder(tmp_path)
    part = kept.new_path("0" * 32, b"salt").with_suffix(".part")
    part.write_bytes(b"half of")
    later = time.time() + 700
    os.utime(part, (later + 86_400, later + 86_400))  # its times are set before its name is
    assert not kept.scan(b"", set())
    assert part.exists(), "another process may be at it"
    monkeypatch.setattr(folder.time, "time", lambda: later)
    assert not kept.scan(b"", set())
    assert not part.exists()
