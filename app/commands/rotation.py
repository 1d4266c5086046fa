"""`partywall store ...`: what encrypts the store; straight on it, whether services run or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer

from app.commands.options import settings_command
from app.commands.store import STORE_FIELDS, AsJson, print_json, with_stores

if TYPE_CHECKING:
    from tenants.at_rest.rotation import Left

app = typer.Typer(no_args_is_help=True)


@app.callback()  # without it, `rotate` would not be a word of its own
def _several() -> None:
    """Rotate what the store is encrypted with."""


@app.command("rotate")
@settings_command(STORE_FIELDS)
def rotate(as_json: AsJson = False, **given: Any) -> None:
    """Encrypt again what is not under the newest secrets.

    Services may run meanwhile. It can be ended and run again at any time.
    """
    left = with_stores(given, lambda stores: stores.rotation.run())
    if as_json:
        print_json(msgspec.to_builtins(left))
    else:
        for line in _lines(left):
            print(line)


def _lines(left: Left) -> list[str]:
    """What has been done, and what is left to do."""
    lines = [f"encrypted again: {left.rewritten}"]
    lines += [f"cannot be read: {key}" for key in left.unreadable]
    lines += [
        f"has a former namespace secret until this runs again in a minute: {owner}"
        for owner in left.former_secrets
    ]
    lines += [f"API key that was not used under the new pepper yet: {key}" for key in left.api_keys]
    if left.peppers:
        lines.append(
            "other_pepper_files are needed until those keys are used, revoked or expired and this "
            "has run again"
        )
    elif not left.former_secrets:
        lines.append("nothing is left under a former pepper or namespace secret")
    return lines
