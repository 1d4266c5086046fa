"""What commands print: tables and fields for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(document: object) -> None:
    """For machines."""
    print(json.dumps(document, indent=2))


def show_line(document: object, line: str, as_json: bool) -> None:
    """As JSON or as a line."""
    if as_json:
        print_json(document)
    else:
        print(line)


def print_table(rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    """For people: aligned columns named after the keys, or `empty` when there are no rows."""
    if not rows:
        print(empty)
        return
    columns = list(rows[0])
    texts = [columns, *([_text(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in texts) for index in range(len(columns))]
    for line in texts:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def show_rows(
    rows: Sequence[Mapping[str, Any]],
    empty: str,
    as_json: bool,
    columns: Sequence[str] | None = None,
) -> None:
    """As JSON or as a table, which has all columns if not told otherwise."""
    if as_json:
        print_json(rows)
    elif columns is None:
        print_table(rows, empty)
    else:
        print_table([{name: row[name] for name in columns} for row in rows], empty)


def print_fields(document: Mapping[str, Any]) -> None:
    """For people: a line for each field, those of a nested document by their path."""
    lines = list(_fields(document, ""))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name.ljust(width)}  {_text(value)}")


def _fields(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _text(value: object) -> str:
    return "-" if value is None else str(value)
