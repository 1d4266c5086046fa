"""Every setting of the service: one typed tree, a file a subject.

A field is the same on the command line (`--step-token-budget`), in the environment
(`PARTYWALL_STEP_TOKEN_BUDGET`) and in `docs/settings.md`; the command line wins. Units are in the
names.
"""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.settings.addresses import AddressSettings
from app.settings.engine import EngineSettings
from app.settings.limits import LimitSettings
from app.settings.operators import OperatorSettings
from app.settings.pictures import PictureSettings
from app.settings.store import StoreSettings

ENV_PREFIX = "PARTYWALL_"


class SettingsError(Exception):
    """A setting that cannot work; the message names it."""


class Settings(
    PictureSettings,
    LimitSettings,
    OperatorSettings,
    StoreSettings,
    EngineSettings,
    AddressSettings,  # whose fields are listed first: a class has those of its last base first
    BaseSettings,
):
    """What `partywall serve` can be told; see the module's docstring for where."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", env_ignore_empty=True, defer_build=False
    )


def load_settings(**given: object) -> Settings:
    """The settings from `given` (the command line), the environment and the defaults.

    Raises `SettingsError`, naming the setting the way a user writes it.
    """
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise SettingsError(message) from None
        name = str(first["loc"][0])
        raise SettingsError(f"{option_name(name)} ({env_name(name)}): {message}") from None


def option_name(field: str) -> str:
    """The command-line option of a field."""
    return "--" + field.replace("_", "-")


def env_name(field: str) -> str:
    """The environment variable of a field."""
    return ENV_PREFIX + field.upper()
