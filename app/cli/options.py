"""Command-line options made from the settings, so that both always have the same names; errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from app.settings import Settings, SettingsError, env_name, option_name
from app.settings.text import choices, default_text


class CommandError(Exception):
    """A mistake or a trouble to report in one line, with exit status 1."""


_LONG_METAVAR = 40
"""Help pages do not wrap them."""


def settings_command(
    fields: list[str] | None = None, shown: list[str] | None = None
) -> Callable[[Callable[..., None]], Any]:
    """Give a command an option for each of `fields` (all settings, unless told otherwise).

    Its help shows those of `shown` (all of them, unless told otherwise).

    The command takes the options that were given as keyword arguments, as text: checking them is
    `load_settings`' business, whose errors name option and variable alike and end the command.
    """
    names = list(Settings.model_fields) if fields is None else fields

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]

        def run(**values: Any) -> None:
            given = {name: value for name, value in values.items() if value is not None}
            try:
                command(**given)
            except SettingsError as error:
                raise CommandError(str(error)) from None

        parameters = [*own, *(_parameter(name, name in (shown or names)) for name in names)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        return run

    return decorate


def _parameter(name: str, is_shown: bool) -> inspect.Parameter:
    field = Settings.model_fields[name]
    flag = field.annotation is bool
    option = option_name(name)
    default = default_text(name) or "empty"
    named, description = choices(name), field.description or ""
    metavar = "|".join(named) or "VALUE"
    if len(metavar) > _LONG_METAVAR:
        metavar = "VALUE"
        description += f" One of {', '.join(named)}."
    declaration = f"{option}/{option_name('no_' + name)}" if flag else option
    annotation = bool if flag else str
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            annotation | None,
            typer.Option(
                declaration,
                metavar=None if flag else metavar,
                help=f"{description}  [env var: {env_name(name)}; default: {default}]",
                show_default=False,
                hidden=not is_shown,
            ),
        ],
    )
