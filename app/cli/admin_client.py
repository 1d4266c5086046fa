"""What commands ask a running service, over `/admin`: what no store knows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli.errors import CommandError

_SECONDS = 30.0

AdminUrl = Annotated[
    str,
    typer.Option(
        "--url", envvar="PARTYWALL_ADMIN_URL", help="The service's address for operators."
    ),
]
DEFAULT_ADMIN_URL = "http://127.0.0.1:8001"
AdminTokenOption = Annotated[
    str,
    typer.Option(
        "--admin-token",
        envvar="PARTYWALL_ADMIN_TOKEN",
        help="The admin token that the first start printed.",
        show_default=False,
    ),
]


def read_admin(url: str, token: str, path: str, **query: object) -> dict[str, Any]:
    """What `/admin` answers to a GET. Raises `CommandError`."""
    import httpx

    try:
        answer = httpx.get(
            f"{url.rstrip('/').removesuffix('/admin')}/admin/{path}",
            params={name: str(value) for name, value in query.items() if value is not None},
            headers={"authorization": f"Bearer {token}"},
            timeout=_SECONDS,
            trust_env=False,
        )
        document: dict[str, Any] = dict(answer.json())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(f"{url} does not answer: {error}") from None
    except (TypeError, ValueError):
        raise CommandError(f"{url} is no service for operators: its answer is no JSON") from None
    if answer.is_error:
        raise CommandError(str(document.get("detail", answer.reason_phrase)))
    return document
