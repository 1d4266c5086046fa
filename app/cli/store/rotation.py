"""`partywall store ...`: what encrypts the store; straight on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer

from app.cli.printing import AsJson, print_json
from app.cli.store.store import Confirmed, confirm, store_command, with_stores

if TYPE_CHECKING:
    from tenants.rotation.rotation import Left

app = typer.Typer(
    help="Rotate what the store is encrypted with, or seal an old one.", no_args_is_help=True
)


@store_command(app, "rotate")
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


@store_command(app, "seal")
def seal(yes: Confirmed = False, as_json: AsJson = False, **given: Any) -> None:
    """Seal what an earlier Partywall left in clear. No service may run.

    It is for once, after that update. It trusts the store as it is at this moment: whoever could
    write to Redis until now could have put anything there, an API key of their own for every
    tenant, say. Run it for no other reason. It can be ended and run again.
    """
    found = with_stores(given, lambda stores: stores.sealing.in_clear(), is_sealed=False)
    if not as_json:
        for one in found:
            print(f"to be sealed: {one}")
    if found:
        confirm(f"Seal these {len(found)} records as they are?", yes)
    done = with_stores(given, lambda stores: stores.sealing.run(found), is_sealed=False)
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    for key in done.left:
        print(f"nothing can be made of: {key}")
    print(f"sealed: {done.sealed}")


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
