"""What the commands over the store have in common: opening it, and printing what is in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from app.commands.errors import CommandError
from app.settings import Settings, SettingsError, load_settings, option_name

if TYPE_CHECKING:
    from app.stores import Stores

Result = TypeVar("Result")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
STORE_FIELDS = ["redis_url", "data_dir", "pepper_file"]


def with_stores(given: Mapping[str, Any], work: Callable[[Stores], Awaitable[Result]]) -> Result:
    """Run `work` over the store that the options name. Raises `CommandError`."""
    from app.stores import open_stores
    from tenants.errors import StoreError

    try:
        settings = load_settings(**given)
    except SettingsError as error:
        raise CommandError(str(error)) from None

    async def run() -> Result:
        async with open_stores(
            settings.redis_url, settings.data_dir, settings.pepper_file, owner=False
        ) as stores:
            return await work(stores)

    try:
        return asyncio.run(run())
    except (StoreError, OSError) as error:
        raise CommandError(str(error)) from error


def store_options(settings: Settings) -> str:
    """The options that lead a command to the same store, each with a space before it."""
    if settings.redis_url is not None:
        return f" {option_name('redis_url')} {settings.redis_url}"
    default = Settings.model_fields["data_dir"].get_default(call_default_factory=True)
    return "" if settings.data_dir == default else f" --data-dir {settings.data_dir}"


def print_json(document: object) -> None:
    """For machines."""
    print(json.dumps(document, indent=2))


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


def _text(value: object) -> str:
    return "-" if value is None else str(value)
