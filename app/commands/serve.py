"""`partywall serve`."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands.errors import CommandError
from app.commands.options import settings_command
from app.commands.store import store_options
from app.settings import Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from app.main import Welcome


@settings_command()
def serve(**given: Any) -> None:
    """Start the service; it runs until Ctrl-C or SIGTERM.

    Every option is also an environment variable, named beside it; the command line wins.
    """
    try:
        settings = load_settings(**given)
    except SettingsError as error:
        raise CommandError(str(error)) from None
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    _warn_if_exposed(settings)
    _serve(settings)


def _serve(settings: Settings) -> None:
    import uvloop

    from app.main import run_service
    from engine.api import EngineError
    from tenants.errors import StoreError

    def progress(line: str) -> None:
        print(f"{line} ...", flush=True)

    def welcome(what: Welcome) -> None:
        print(_welcome_text(what, settings), flush=True)

    try:
        uvloop.run(run_service(settings, progress, welcome))
    except asyncio.CancelledError:
        print("stopped before it was ready", file=sys.stderr)
    except (EngineError, StoreError, OSError, ValueError) as error:
        raise CommandError(str(error)) from error


def _warn_if_exposed(settings: Settings) -> None:
    if settings.is_exposed and not settings.insecure:
        print(
            f"warning: {settings.host} is reachable from other machines, and API keys cross the "
            "network in clear text; give --ssl-certfile and --ssl-keyfile, or --insecure where "
            "something in front adds TLS. The demo tenant is not served.",
            file=sys.stderr,
        )


def _welcome_text(what: Welcome, settings: Settings) -> str:
    """What a newcomer needs first: where it is, the keys, and a line to paste."""
    lines = ["", f"Partywall serves {settings.model} at {what.url}"]
    if what.admin_token is not None:
        lines.append(f"  admin token: {what.admin_token}  (shown once)")
    if what.api_key is not None:
        lines.append(f"  API key of the tenant '{what.tenant}': {what.api_key}  (shown once)")
        lines += ["", "Chat with it from another terminal:", f"  {_chat_line(what)}"]
    elif what.tenant is not None:
        rotate = f"{_program()} tenant rotate-key {what.tenant}{store_options(settings)}"
        lines.append(f"  lost the key of the tenant '{what.tenant}'? {rotate}")
    else:
        lines.append(f"  make a tenant: {_program()} tenant create NAME{store_options(settings)}")
    return "\n".join([*lines, ""])


def _chat_line(what: Welcome) -> str:
    return f"{_program()} chat --url {what.url} --api-key {what.api_key}"


def _program() -> str:
    """How this program is called from here: by its name if that finds it, else by its path."""
    beside = Path(sys.executable).parent / "partywall"
    found = shutil.which("partywall")
    if found is not None and Path(found) == beside:
        return "partywall"
    if not beside.exists():
        return f"{shlex.quote(sys.executable)} -m app.cli"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))
