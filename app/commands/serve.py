"""`partywall serve`."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.commands.errors import CommandError
from app.commands.models import stronger_models
from app.commands.options import settings_command
from app.commands.store import store_options
from app.settings import Settings, SettingsError, load_settings
from engine.model.weights import DEFAULT_MODEL, in_a_line

if TYPE_CHECKING:
    from app.main import Welcome


@settings_command()
def serve(**given: Any) -> None:
    """Start the service; it runs until Ctrl-C or SIGTERM.

    Every option is also an environment variable, named beside it; the command line wins.
    """
    from app.logs.setup import log_to

    try:
        settings = load_settings(**given)
    except SettingsError as error:
        raise CommandError(str(error)) from None
    log_to(sys.stderr, settings.log_format, settings.log_level)
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
        _write_ready_file(what, settings)

    try:
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
        uvloop.run(run_service(settings, progress, welcome))
    except asyncio.CancelledError:
        print("stopped before it was ready", file=sys.stderr)
    except OSError as error:
        raise CommandError(in_a_line(error)) from error
    except (EngineError, StoreError, ValueError) as error:
        raise CommandError(str(error)) from error


def _warn_if_exposed(settings: Settings) -> None:
    if settings.exposed_hosts and not settings.insecure:
        demo = " The demo tenant is not served." if settings.is_exposed else ""
        print(
            f"warning: {' and '.join(settings.exposed_hosts)} can be reached from other machines, "
            "and keys cross the network in clear text; give --ssl-certfile and --ssl-keyfile, or "
            f"--insecure where something in front adds TLS.{demo}",
            file=sys.stderr,
        )


def _write_ready_file(what: Welcome, settings: Settings) -> None:
    """Tell scripts that requests are served, and how to get a key where this start made none."""
    from app.admin.token import write_private

    if settings.ready_file is None:
        return
    command = None if what.api_key is not None else _key_command(what, settings)
    document = {**asdict(what), "api_key_command": command}
    write_private(settings.ready_file, json.dumps(document) + "\n")


def _key_command(what: Welcome, settings: Settings) -> str:
    """A line for a shell that prints an API key; a tenant's former one is not valid after it."""
    verb = "tenant create NAME" if what.tenant is None else f"tenant rotate-key {what.tenant}"
    return f"{_program()} {verb}{store_options(settings)}"


def _welcome_text(what: Welcome, settings: Settings) -> str:
    """What a newcomer needs first: where it is, the keys, and a line to paste."""
    from app.admin.token import token_path

    lines = ["", f"Partywall serves {settings.model} at {what.url}"]
    admin_url = what.admin_url
    lines.append(f"  in a browser: {what.url}/console, and for operators {admin_url}/console")
    lines.append(f"  for operators' programs: {admin_url}/admin/docs, {admin_url}/metrics")
    if what.admin_token is not None:
        lines.append(f"  admin token: {what.admin_token}  (shown once)")
    if what.api_key is not None:
        lines.append(f"  API key of the tenant '{what.tenant}': {what.api_key}  (shown once)")
        lines += ["", "Chat with it from another terminal:", f"  {_chat_line(what)}"]
        if settings.model == DEFAULT_MODEL:
            lines += ["", f"A stronger model: {stronger_models(settings)}"]
    elif what.tenant is not None:
        command = _key_command(what, settings)
        lines.append(f"  lost the key of the tenant '{what.tenant}'? {command}")
    else:
        lines.append(f"  make a tenant: {_key_command(what, settings)}")
    if what.admin_token is None and settings.admin_token_file is None:
        kept = shlex.quote(str(token_path(settings.data_dir)))
        lines.append(f"  lost the admin token? Stop, delete {kept}, and start again")
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
