"""What commands on the store have in common: opening it, asking first, and who they act as."""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from app.cli.options import CommandError, settings_command
from app.settings import Settings, load_settings, option_name
from engine.model.weights import in_a_line

if TYPE_CHECKING:
    from app.stores import Stores

Result = TypeVar("Result")

Confirmed = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Lifetime = Annotated[
    int | None, typer.Option(min=1, help="How long it is valid; for ever by default.")
]
Overlap = Annotated[float, typer.Option(min=0, help="How long the old key stays valid.")]
TenantId = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id.")]
STORE_FIELDS = ["redis_url", "redis_password_file", "data_dir", "pepper_file", "other_pepper_files"]


def with_stores(
    given: Mapping[str, Any],
    work: Callable[[Stores], Awaitable[Result]],
    *,
    is_restored: bool = False,
    is_sealed: bool = True,
) -> Result:
    """Run `work` over the store that the options name, see `open_stores`.

    Raises `CommandError` and `SettingsError`.
    """
    from app.stores import open_stores
    from tenants.errors import StoreError

    settings = load_settings(**given)

    async def run() -> Result:
        async with open_stores(
            settings, owner=False, is_restored=is_restored, is_sealed=is_sealed
        ) as stores:
            return await work(stores)

    try:
        return asyncio.run(run())
    except OSError as error:
        raise CommandError(in_a_line(error)) from error
    except StoreError as error:
        raise CommandError(str(error)) from error


def store_command(
    app: typer.Typer, name: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have `app` give a command on the store, with the options that name the store."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(settings_command(STORE_FIELDS)(command))
        return command

    return add


def actor() -> str:
    """Who the audit says it was: whoever runs the command."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # no name, as in a container with a user of its own
        return f"cli:{os.getuid()}"


def confirm(question: str, confirmed: bool) -> None:
    """Ask, unless that is done with. Raises `CommandError` for a no."""
    if not confirmed and not typer.confirm(question):
        raise CommandError("nothing was done")


def store_options(settings: Settings) -> str:
    """The options that lead a command to the same store, each with a space before it."""
    if settings.redis_url is not None:
        password = settings.redis_password_file
        return f" {option_name('redis_url')} {settings.redis_url}" + (
            "" if password is None else f" {option_name('redis_password_file')} {password}"
        )
    default = Settings.model_fields["data_dir"].get_default(call_default_factory=True)
    return "" if settings.data_dir == default else f" --data-dir {settings.data_dir}"
