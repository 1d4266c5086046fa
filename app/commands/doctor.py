"""`partywall doctor`: what a service would find here, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from app.commands.errors import CommandError
from app.commands.options import settings_command
from app.commands.store import AsJson, print_fields, print_json
from app.settings import Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from app.commands.findings import Finding, StoreState
    from engine.model.machine import Machine

_ROUND_TRIPS = 5
_FIELDS = ["redis_url", "redis_password_file", "data_dir", "cache_dir"]
_FIELDS += ["model", "threads", "kernel_paths", "kv_memory"]


@settings_command(_FIELDS)
def doctor(as_json: AsJson = False, **given: Any) -> None:
    """Look at this machine as `serve` would, and say what is wrong; status 1 if it would not do."""
    from app.commands.findings import findings_of
    from app.main import engine_config
    from engine.model.machine import examine

    try:
        settings = load_settings(**given)
    except SettingsError as error:
        raise CommandError(str(error)) from None
    named = [name for name in (settings.model, settings.draft_model) if name is not None]
    machine = examine(engine_config(settings, *map(Path, named)))
    store = asyncio.run(_store_state(settings))
    findings = findings_of(machine, store, settings)
    _print(machine, store, findings, as_json=as_json)
    if any(finding.is_grave for finding in findings):
        raise typer.Exit(1)


def _print(
    machine: Machine, store: StoreState, findings: Sequence[Finding], *, as_json: bool
) -> None:
    import msgspec

    document = msgspec.to_builtins(machine) | {"store": asdict(store)}
    if as_json:
        print_json(document | {"findings": [asdict(finding) for finding in findings]})
        return
    print_fields(document)
    print()
    for finding in findings:
        grade = "error" if finding.is_grave else "warning"
        print(f"{grade}: {finding.what}\n  {finding.remedy}")
    if not findings:
        print("nothing is wrong")


async def _store_state(settings: Settings) -> StoreState:
    """Ask the Redis of the settings; the embedded store is only looked at."""
    from app.commands.findings import StoreState
    from tenants.connection import without_password
    from tenants.errors import StoreError

    if settings.redis_url is None:
        return StoreState(str(settings.data_dir), None, "")
    place = without_password(settings.redis_url)
    try:
        return StoreState(place, await _round_trip(settings.store_url or ""), "")
    except (StoreError, OSError) as error:
        return StoreState(place, None, str(error))


async def _round_trip(url: str) -> float:
    """Milliseconds that Redis takes to answer. Raises `StoreError`."""
    from tenants.connection import open_redis

    redis = await open_redis(url)
    try:
        taken = []
        for _ in range(_ROUND_TRIPS):
            start = perf_counter()
            await redis.execute("PING")
            taken.append((perf_counter() - start) * 1000)
    finally:
        await redis.close()
    return round(median(taken), 2)
