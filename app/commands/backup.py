"""`partywall backup` and `partywall restore`: all that is kept of tenants, in a file and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from app.commands.options import settings_command
from app.commands.store import STORE_FIELDS, Confirmed, confirm, with_stores

_File = Annotated[Path, typer.Argument(help="The backup.", metavar="FILE")]


@settings_command(STORE_FIELDS)
def backup(file: _File, **given: Any) -> None:
    """Write all that is kept of tenants to a new file.

    Services may run meanwhile. What is encrypted stays so: keep the pepper file, elsewhere.
    """
    count = with_stores(given, lambda stores: stores.backup.save(file))
    print(f"{count} records are in {file}")


@settings_command(STORE_FIELDS)
def restore(
    file: _File,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove first what is in the store.")
    ] = False,
    yes: Confirmed = False,
    **given: Any,
) -> None:
    """Have an empty store hold what a backup has. No service should run.

    Nothing is changed unless the file is whole and its pepper is given.
    """
    if replace:
        confirm("Remove everything that is in the store?", yes)
    count = with_stores(
        given, lambda stores: stores.backup.load(file, replaces=replace), is_restored=True
    )
    print(f"{count} records are restored")
