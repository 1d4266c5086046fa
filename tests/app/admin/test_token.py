"""The operator's token: told once, kept as a hash, readable by nobody else."""

import stat
from pathlib import Path

import pytest

from app.admin.token import load_admin_token, write_private


def test_the_first_start_tells_the_token_and_later_ones_only_know_it(tmp_path: Path) -> None:
    first = load_admin_token(tmp_path / "data", None)
    assert first.created is not None
    later = load_admin_token(tmp_path / "data", None)
    assert later.created is None
    assert later.holder(first.created) == "admin"
    assert later.holder(first.created + "x") is None


def test_the_token_itself_is_not_on_disk(tmp_path: Path) -> None:
    token = load_admin_token(tmp_path, None)
    (path,) = tmp_path.iterdir()
    assert token.created is not None
    assert token.created not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_given_token_is_used_and_not_told(tmp_path: Path) -> None:
    given = tmp_path / "token"
    given.write_text("correct-horse-battery\n")
    token = load_admin_token(tmp_path / "data", given)
    assert token.created is None
    assert token.holder("correct-horse-battery") == "admin"
    assert not (tmp_path / "data").exists()


def test_a_file_may_hold_a_token_for_each_operator(tmp_path: Path) -> None:
    given = tmp_path / "tokens"
    given.write_text("ann correct-horse-battery\n\nbob staple-donkey-monday\n")
    token = load_admin_token(tmp_path, given)
    assert token.holder("correct-horse-battery") == "ann"
    assert token.holder("staple-donkey-monday") == "bob"
    assert token.holder("ann correct-horse-battery") is None


@pytest.mark.parametrize(
    "text", ["short", "", "ann short", "ann correct-horse-battery 1", "correct-horse-battery\nx"]
)
def test_a_short_token_and_a_line_that_is_none_are_refused(tmp_path: Path, text: str) -> None:
    given = tmp_path / "token"
    given.write_text(text)
    with pytest.raises(ValueError, match="admin_token_file"):
        load_admin_token(tmp_path, given)


def test_a_private_file_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_private(path, "one")
    write_private(path, "two")
    assert path.read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
