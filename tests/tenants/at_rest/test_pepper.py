"""The pepper file: made once, private, and read back the same."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tenants.at_rest.pepper import load_or_create_pepper
from tenants.errors import InvalidField

ROOT = Path(__file__).parents[3]


def test_a_pepper_is_made_once_and_read_back(tmp_path: Path) -> None:
    data_dir = tmp_path / "not yet" / "there"
    pepper = load_or_create_pepper(data_dir)
    assert len(pepper) == 32
    assert load_or_create_pepper(data_dir) == pepper
    assert load_or_create_pepper(tmp_path / "other") != pepper


def test_only_the_owner_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_or_create_pepper(tmp_path / "data")
    finally:
        os.umask(before)
    (file,) = (tmp_path / "data").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_processes_that_start_at_once_agree_on_one(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tenants.at_rest.pepper import load_or_create_pepper\n"
        "sys.stdin.read(); print(load_or_create_pepper(Path(sys.argv[1])).hex())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    racers = [subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for _ in range(4)]  # type: ignore[call-overload]
    for racer in racers:
        racer.stdin.close()
    found = {racer.stdout.read().strip() for racer in racers}
    assert [racer.wait(60) for racer in racers] == [0] * 4
    for racer in racers:
        racer.stdout.close()
    assert found == {load_or_create_pepper(tmp_path / "data").hex()}
    assert len(list((tmp_path / "data").iterdir())) == 1


def test_an_operators_own_file_is_used_instead(tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("ab" * 32 + "\n")
    assert load_or_create_pepper(tmp_path / "data", file) == b"\xab" * 32
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("content", [None, "", "ab" * 31, "ab" * 33, "zz" * 32, "\xff\xfe"])
def test_a_file_that_holds_no_pepper_is_refused_by_name(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "mine"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InvalidField, match="mine") as caught:
        load_or_create_pepper(tmp_path / "data", file)
    assert caught.value.field == "pepper_file"


def test_a_damaged_pepper_is_never_replaced(tmp_path: Path) -> None:
    load_or_create_pepper(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text("")
    with pytest.raises(InvalidField):
        load_or_create_pepper(tmp_path)
    assert file.read_text() == ""
