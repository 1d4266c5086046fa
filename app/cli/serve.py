"""`partywall serve`."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.models import stronger_models
from app.cli.options import CommandError, settings_command
from app.cli.store.store import store_options
from app.settings import Settings, load_settings
from engine.model.weights import DEFAULT_MODEL, in_a_line

if TYPE_CHECKING:
    from app.assembly.main import Welcome

_FIRST_SECRETS = "first-secrets.json"


@settings_command()
def serve(**given: Any) -> None:
    """Start the service; it runs until Ctrl-C or SIGTERM.

    Every option is also an environment variable, named beside it; the command line wins.
    """
    from app.observe.log_setup import log_to

    settings = load_settings(**given)
    log_to(sys.stderr, settings.log_format, settings.log_level)
    _warn_if_exposed(settings)
    _serve(settings)


def _serve(settings: Settings) -> None:
    import uvloop

    from app.assembly.main import run_service
    from engine.api import EngineError
    from tenants.errors import StoreError

    def progress(line: str) -> None:
        print(f"{line} ...", flush=True)

    _keep_private(settings)
    try:
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
        uvloop.run(run_service(settings, progress, lambda what: tell(what, settings)))
    except asyncio.CancelledError:
        print("stopped before it was ready", file=sys.stderr)
    except OSError as error:
        raise CommandError(in_a_line(error)) from error
    except (EngineError, StoreError, ValueError) as error:
        raise CommandError(str(error)) from error


def tell(what: Welcome, settings: Settings) -> None:
    """Say that requests are served: to who has started this, and to scripts in the ready file."""
    print(_welcome_text(what, settings, _leave_secrets(what, settings)), flush=True)
    _write_ready_file(what, settings)


def _warn_if_exposed(settings: Settings) -> None:
    if settings.exposed_hosts and not settings.insecure:
        demo = " The demo tenant is not served." if settings.is_exposed else ""
        print(
            f"warning: {' and '.join(settings.exposed_hosts)} can be reached from other machines, "
            "and keys cross the network in clear text; give --ssl-certfile and --ssl-keyfile, or "
            f"--insecure where something in front adds TLS.{demo}",
            file=sys.stderr,
        )


def _keep_private(settings: Settings) -> None:
    """What this process and its children write is its user's alone, their memory included."""
    from engine.system.secrecy import forbid_core_dumps

    os.umask(0o077)
    if not settings.core_dumps:
        forbid_core_dumps()


def _leave_secrets(what: Welcome, settings: Settings) -> Path | None:
    """Where the secrets of this start are to be found, if they may not be printed.

    What is printed on no terminal is kept: by journals, by collectors of logs, by `docker logs`.
    """
    from app.admin.token import write_private

    if sys.stdout.isatty() or (what.api_key is None and what.admin_token is None):
        return None
    if settings.ready_file is not None:
        return settings.ready_file
    path = settings.data_dir / _FIRST_SECRETS
    write_private(path, _ready_document(what, settings))
    return path


def _write_ready_file(what: Welcome, settings: Settings) -> None:
    """Tell scripts that requests are served, and how to get a key where this start made none."""
    from app.admin.token import write_private

    if settings.ready_file is not None:
        write_private(settings.ready_file, _ready_document(what, settings))


def _ready_document(what: Welcome, settings: Settings) -> str:
    command = None if what.api_key is not None else _key_command(what, settings)
    return json.dumps({**asdict(what), "api_key_command": command}) + "\n"


def _key_command(what: Welcome, settings: Settings) -> str:
    """A line for a shell that prints an API key; a tenant's former one is not valid after it."""
    verb = "tenant create NAME" if what.tenant is None else f"tenant rotate-key {what.tenant}"
    return f"{_program()} {verb}{store_options(settings)}"


def _welcome_text(what: Welcome, settings: Settings, secrets: Path | None) -> str:
    """What a newcomer needs first: where it is, the keys or the file of `secrets`, and a line to
    paste.
    """
    lines = ["", f"Partywall serves {settings.model} at {what.url}"]
    admin_url = what.admin_url
    lines.append(f"  in a browser: {what.url}/console, and for operators {admin_url}/console")
    lines.append(f"  for operators' programs: {admin_url}/admin/docs, {admin_url}/metrics")
    if secrets is None:
        lines += _new_secrets(what)
    else:
        names = " and ".join(_names_of_secrets(what))
        lines.append(f"  {names}: in {shlex.quote(str(secrets))}, which only this user can read")
    lines += _lost_secrets(what, settings)
    if what.api_key is not None:
        lines += ["", "Chat with it from another terminal:", f"  {_chat_line(what, secrets)}"]
        if settings.model == DEFAULT_MODEL:
            lines += ["", f"A stronger model: {stronger_models(settings)}"]
    return "\n".join([*lines, ""])


def _names_of_secrets(what: Welcome) -> list[str]:
    names = [] if what.admin_token is None else ["admin token"]
    return names if what.api_key is None else [*names, f"API key of the tenant '{what.tenant}'"]


def _new_secrets(what: Welcome) -> list[str]:
    made = [one for one in (what.admin_token, what.api_key) if one is not None]
    names = _names_of_secrets(what)
    return [f"  {name}: {one}  (shown once)" for name, one in zip(names, made, strict=True)]


def _lost_secrets(what: Welcome, settings: Settings) -> list[str]:
    """How to have others in the place of those that an earlier start has made."""
    from app.admin.token import token_path

    lines, command = [], _key_command(what, settings)
    if what.tenant is None:
        lines.append(f"  make a tenant: {command}")
    elif what.api_key is None:
        lines.append(f"  lost the key of the tenant '{what.tenant}'? {command}")
    if what.admin_token is None and settings.admin_token_file is None:
        kept = shlex.quote(str(token_path(settings.data_dir)))
        lines.append(f"  lost the admin token? Stop, delete {kept}, and start again")
    first = settings.data_dir / _FIRST_SECRETS
    if what.admin_token is None and first.exists():
        lines.append(f"  the first start's secrets are in {shlex.quote(str(first))}: delete it")
    return lines


def _chat_line(what: Welcome, secrets: Path | None) -> str:
    key = what.api_key
    if secrets is not None:
        read = f"import json; print(json.load(open({str(secrets)!r}))['api_key'])"
        key = f'"$({shlex.join([sys.executable, "-c", read])})"'
    return f"{_program()} chat --url {what.url} --api-key {key}"


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
