"""All that is looked at, in the order of a start; at its end what surrounds the service."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from app.admin.ops import read_scraping
from app.admin.token import load_admin_token, token_path
from app.assembly.check import Check
from app.assembly.parts import engine_config, service_prices, service_webhook
from app.assembly.places import check_disk, check_places
from app.doctor.machine import check_machine
from app.doctor.model import check_models
from app.doctor.network import check_ports, check_sign_in
from app.doctor.store import check_store
from app.settings import ENV_PREFIX, Settings, env_name
from app.stores import has_pepper, known_peppers
from engine.model.machine import Machine, examine
from tenants.errors import InvalidField

_OTHER_VARIABLES = {
    f"{ENV_PREFIX}{name}" for name in ("API_KEY", "URL", "ADMIN_URL", "ADMIN_TOKEN", "AUDIT_KEYS")
}
"""Of commands other than `serve`."""
_MOST_AHEAD_SECONDS = 60.0


def machine_of(settings: Settings) -> Machine:
    """What an engine with these settings would compute with."""
    named = [name for name in (settings.model, settings.draft_model) if name is not None]
    return examine(engine_config(settings, *map(Path, named)))


async def checks(settings: Settings, machine: Machine) -> list[Check]:
    """What came of looking at everything that `serve` would use with these settings."""
    return [
        *check_machine(machine, settings),
        *check_models(settings),
        *check_places(settings),
        *check_disk(settings),
        *_given_files(settings),
        *await check_store(settings),
        *check_ports(settings),
        *[one async for one in check_sign_in(settings)],
        check_environment(),
        check_clock(settings),
    ]


def _given_files(settings: Settings) -> Iterator[Check]:
    """Those whose contents only a start would read."""
    try:
        service_prices(settings, settings.model)
        service_webhook(settings)
    except (OSError, ValueError) as error:
        yield Check("given files", "fail", str(error), "correct that file")
    try:
        _read_secrets(settings)
    except (InvalidField, OSError, ValueError) as error:
        yield Check("secrets", "fail", str(error), "have the original files back")


def _read_secrets(settings: Settings) -> None:
    """Those that are there; a start would make the others."""
    data_dir = settings.data_dir
    if has_pepper(settings):
        known_peppers(settings)
    if settings.admin_token_file is not None or token_path(data_dir).exists():
        load_admin_token(data_dir, settings.admin_token_file)
    read_scraping(settings.metrics_token_file, settings.open_metrics)


def check_environment(variables: Mapping[str, str] = os.environ) -> Check:
    """Whether each variable that looks like a setting is one."""
    known = {env_name(field) for field in Settings.model_fields}
    strange = sorted(
        name
        for name in variables
        if name.startswith(ENV_PREFIX) and name not in known | _OTHER_VARIABLES
    )
    if not strange:
        number = sum(name in known for name in variables)
        return Check("environment", "ok", f"{number} settings come from it")
    near = get_close_matches(strange[0], known, 1)
    return Check(
        "environment",
        "warn",
        f"{', '.join(strange)}: there is no such setting, and nobody reads it",
        f"was {near[0]} meant?" if near else "see docs/settings.md",
    )


def check_clock(settings: Settings) -> Check:
    """Whether the clock went back behind what was written here before."""
    newest = 0.0
    if settings.data_dir.is_dir() and os.access(settings.data_dir, os.R_OK | os.X_OK):
        written = [entry.stat(follow_symlinks=False) for entry in os.scandir(settings.data_dir)]
        newest = max((status.st_mtime for status in written), default=0.0)
    ahead = newest - time.time()
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if ahead > _MOST_AHEAD_SECONDS:
        return Check(
            "clock",
            "warn",
            f"{now}, and files in {settings.data_dir} are {ahead:.0f} s younger: it was set back; "
            "limits and lifetimes wait until then",
            "have it set by NTP",
        )
    return Check("clock", "ok", now)
