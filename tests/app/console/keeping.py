"""What tests make and the repository keeps: `UPDATE=1` has it made anew."""

from __future__ import annotations

import os
from pathlib import Path

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"


def is_updating() -> bool:
    """Whether the files that are kept shall be those that the tests make now."""
    return os.environ.get("UPDATE") == "1"
