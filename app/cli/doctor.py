"""`partywall doctor`: what a service would find here, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from app.cli.options import settings_command
from app.cli.printing import AsJson, print_json
from app.settings import Settings, load_settings

if TYPE_CHECKING:
    from app.assembly.check import Check

_SHOWN = ["model", "data_dir", "cache_dir", "redis_url", "redis_password_file"]
_SHOWN += ["host", "port", "threads", "kernel_paths", "kv_memory"]
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@settings_command(list(Settings.model_fields), shown=_SHOWN)
def doctor(as_json: AsJson = False, **given: Any) -> None:
    """Look at this machine as `serve` would, and say what is wrong.

    Status 1: a service would not start. It takes every option of `serve`, whose help names them
    all, and changes nothing.
    """
    from app.doctor.examine import checks, machine_of

    settings = load_settings(**given)
    machine = machine_of(settings)
    found = asyncio.run(checks(settings, machine))
    if as_json:
        import msgspec

        documents = [asdict(check) for check in found]
        print_json({"checks": documents, "machine": msgspec.to_builtins(machine)})
    else:
        _print(found)
    if any(check.grade == "fail" for check in found):
        raise typer.Exit(1)


def _print(found: Sequence[Check]) -> None:
    """A line for each, and what to do about it under it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in found:
        table.add_row(Text(check.grade, _STYLES[check.grade]), check.part, Text(check.what))
        if check.remedy:
            table.add_row("", "", Text(f"-> {check.remedy}"))
    console = Console()
    console.print(table)
    console.print(f"\n{_verdict(found)}")


def _verdict(found: Sequence[Check]) -> str:
    fails = sum(check.grade == "fail" for check in found)
    warnings = sum(check.grade == "warn" for check in found)
    if not fails + warnings:
        return "nothing is wrong"
    if not fails:
        return f"nothing to mend, {warnings} to know of"
    return f"a service would not start: {fails} to mend, {warnings} to know of"
