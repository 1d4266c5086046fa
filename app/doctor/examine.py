"""All that is looked at, in the order of a start."""

from __future__ import annotations

from collections.abc import Iterator
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
from app.doctor.system import check_clock, check_environment
from app.settings import Settings
from app.stores import has_pepper, known_peppers
from engine.model.machine import Machine, examine
from tenants.errors import InvalidField


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
