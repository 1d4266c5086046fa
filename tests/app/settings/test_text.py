"""The table of settings in the docs is made from the settings."""

from __future__ import annotations

from pathlib import Path

from app.settings.__main__ import with_table
from app.settings.text import table

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_docs_have_the_table_that_is_made_of_the_settings() -> None:
    documented = PAGE.read_text()
    assert with_table(documented) == documented, "python -m app.settings docs/settings.md"


def test_a_page_keeps_what_is_around_its_table() -> None:
    page = "# Settings\n<!-- settings: made -->\nold\n<!-- /settings -->\nMore.\n"
    made = f"# Settings\n<!-- settings: made -->\n{table()}\n<!-- /settings -->\nMore.\n"
    assert with_table(page) == made
