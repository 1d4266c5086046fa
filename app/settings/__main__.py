"""Write the table of settings: `python -m app.settings docs/settings.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from app.settings.text import table

_END = "<!-- /settings -->"


def with_table(page: str) -> str:
    """The page with what is now known of the settings between its two marks."""
    before, start, rest = page.partition("<!-- settings")
    mark, line_end, old = rest.partition("-->\n")
    _, end, after = old.partition(_END)
    return f"{before}{start}{mark}{line_end}{table()}\n{end}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_table(page.read_text()))
