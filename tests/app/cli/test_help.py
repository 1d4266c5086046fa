"""Every help page reads well at 80 columns: nothing runs over them, nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from app.cli.program import app


def pages(command: TyperCommand | TyperGroup, *names: str) -> Iterator[tuple[str, ...]]:
    """The words that lead to each command and group of commands."""
    yield names
    for name, inner in getattr(command, "commands", {}).items():
        yield from pages(inner, *names, name)


PAGES = list(pages(get_command(app)))


def test_all_commands_are_looked_at() -> None:
    assert {(), ("serve",), ("doctor",), ("tenant", "create")} <= set(PAGES)


@pytest.mark.parametrize("names", PAGES, ids=" ".join)
def test_a_page_fits_into_80_columns(names: tuple[str, ...]) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*names, "--help"], prog_name="partywall")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].startswith(" ".join(["Usage: partywall", *names]))
    assert max(map(len, lines)) <= 80
    assert [line for line in lines[1:] if line.endswith(("...", "…"))] == []
