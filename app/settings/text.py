"""How a setting is told: its default, and what it may be."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pydantic import ByteSize

from app.settings import Settings, option_name
from app.settings.kinds import AUTO


def default_text(field: str) -> str:
    """A field's default as a user would write it."""
    default = Settings.model_fields[field].get_default(call_default_factory=True)
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, Path):
        return str(default).replace(str(Path.home()), "~", 1)
    if default is None:
        return "auto" if AUTO in Settings.model_fields[field].metadata else "none"
    if isinstance(default, ByteSize) and default:
        return default.human_readable(separator="")
    return str(default)


def choices(field: str) -> tuple[str, ...]:
    """The values that a field may have, if it names them all."""
    annotation = Settings.model_fields[field].annotation
    return tuple(value for value in get_args(annotation) if isinstance(value, str))


def table() -> str:
    """All settings, as `docs/settings.md` lists them."""
    return "\n".join(["| option | default | |", "|---|---|---|", *map(_row, Settings.model_fields)])


def _row(field: str) -> str:
    description = Settings.model_fields[field].description
    named = ", ".join(f"`{value}`" for value in choices(field))
    one_of = f" One of {named}." if named else ""
    return f"| `{option_name(field)}` | `{default_text(field)}` | {description}{one_of} |"
