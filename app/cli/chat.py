"""`partywall chat`."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.chat_client import ChatError, ChatOptions, run_chat
from app.cli.errors import CommandError

_DEFAULT_URL = "http://127.0.0.1:8000"


def chat(
    api_key: Annotated[
        str,
        typer.Option(
            envvar="PARTYWALL_API_KEY", help="API key of the tenant to chat as.", show_default=False
        ),
    ],
    url: Annotated[str, typer.Option(envvar="PARTYWALL_URL", help="The service.")] = _DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Model; the service's own by default.")] = None,
    system: Annotated[str | None, typer.Option(help="Text of the system prompt.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Name of a registered system prompt of the tenant.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="End user, whose conversations share blocks only here.")
    ] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, in tokens.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="Randomness; 0 always takes the likeliest token.")
    ] = 0.6,
) -> None:
    """Chat in the terminal. Piped input is taken as one question a line."""
    if system is not None and prompt is not None:
        raise typer.BadParameter("--system and --prompt exclude each other")
    options = ChatOptions(
        model=model,
        system=system,
        prompt=prompt,
        user=user,
        max_output_tokens=max_output_tokens,
        temperature=temperature,
    )
    try:
        status = run_chat(url, api_key, options)
    except ChatError as error:
        raise CommandError(str(error)) from None
    raise typer.Exit(status)
