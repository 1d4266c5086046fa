"""`partywall backup` and `partywall restore`: all that is kept of tenants, in a file and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.options import settings_command
from app.cli.store.store import STORE_FIELDS, Confirmed, confirm, with_stores

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
    revoke_keys: Annotated[
        bool, typer.Option("--revoke-keys", help="Bring back no API key of any tenant.")
    ] = False,
    without_tokens: Annotated[
        bool, typer.Option("--without-tokens", help="Bring back no admin token of the store.")
    ] = False,
    yes: Confirmed = False,
    **given: Any,
) -> None:
    """Have an empty store hold what a backup has. No service should run.

    Nothing is changed unless the file is whole, as it was written, and under a pepper that is
    given. What was revoked or deleted since then comes back: keys, tokens, tenants.
    """
    from tenants.backup import Without

    if replace:
        confirm("Remove everything that is in the store?", yes)
    without = Without(keys=revoke_keys, tokens=without_tokens)
    count = with_stores(
        given,
        lambda stores: stores.backup.load(file, replaces=replace, without=without),
        is_restored=True,
    )
    print(f"{count} records are restored, as they were when the backup was made")
    print(_what_is_back(revoke_keys, without_tokens))


def _what_is_back(revoke_keys: bool, without_tokens: bool) -> str:
    """What an operator has to look at now."""
    back = ["tenants that were deleted since are back"]
    if revoke_keys:
        back.append("no API key is: create new ones")
    else:
        back.append("so are API keys that were revoked since (--revoke-keys leaves all out)")
    if without_tokens:
        back.append("no admin token of the store is")
    else:
        back.append("so are admin tokens that were revoked since (--without-tokens)")
    return "; ".join(back)
