"""`partywall tenant ...`: straight on the store, whether the service runs or not.

But for `cache`, which asks the `/admin` of one that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import CommandError
from app.cli.printing import AsJson, print_fields, print_json, print_table, show_line, show_rows
from app.cli.store.store import (
    Confirmed,
    Overlap,
    TenantId,
    actor,
    confirm,
    store_command,
    with_stores,
)

if TYPE_CHECKING:
    from app.admin.documents import TenantPatch
    from tenants.records import Tenant


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


app = typer.Typer(help="Create, show, change and delete tenants.", no_args_is_help=True)

_LISTED = ("id", "name", "status", "weight", "share_group", "created_at")


@store_command(app, "create")
def create(
    tenant: TenantId,
    name: Annotated[str | None, typer.Option(help="Name for people; the id by default.")] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Create a tenant and print its API key. It cannot be read again."""
    created, api_key = with_stores(
        given, lambda stores: stores.tenants.create_tenant(tenant, name, actor=actor())
    )
    show_line(
        _document(created) | {"api_key": api_key},
        f"created tenant {created.id}; its API key, shown once:\n{api_key}",
        as_json,
    )


@store_command(app, "list")
def list_(as_json: AsJson = False, **given: Any) -> None:
    """List all tenants."""
    tenants = with_stores(given, lambda stores: stores.tenants.list_tenants())
    documents = [_document(one) for one in tenants]
    show_rows(documents, "there are no tenants", as_json, _LISTED)


@store_command(app, "show")
def show(tenant: TenantId, as_json: AsJson = False, **given: Any) -> None:
    """Show one tenant."""
    _print(with_stores(given, lambda stores: stores.tenants.get_tenant(tenant)), as_json)


@store_command(app, "set")
def set_(
    tenant: TenantId,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE...",
            help="As 'show' names them: status=disabled weight=2 limits.tokens_per_minute=10000; "
            "'none' lifts a limit, and leaves a share group; 'unlimited' lifts a default one too.",
        ),
    ],
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Change a tenant. It holds for the next request of every running service."""
    from app.admin.documents import edited

    patch = _patch(changes)
    changed = with_stores(
        given,
        lambda stores: stores.tenants.update_tenant(
            tenant, lambda one: edited(one, patch), actor=actor()
        ),
    )
    _print(changed, as_json)


@store_command(app, "rotate-key")
def rotate_key(
    tenant: TenantId, overlap_seconds: Overlap = 0, as_json: AsJson = False, **given: Any
) -> None:
    """Print a new API key. The newest old one ends now, or after --overlap-seconds."""
    _, api_key = with_stores(
        given,
        lambda stores: stores.tenants.rotate_key(
            tenant, overlap_seconds=overlap_seconds, actor=actor()
        ),
    )
    line = f"new API key of tenant {tenant}, shown once:\n{api_key}"
    show_line({"id": tenant, "api_key": api_key}, line, as_json)


@store_command(app, "rotate-secret")
def rotate_secret(tenant: TenantId, yes: Confirmed = False, **given: Any) -> None:
    """Give a tenant another namespace secret. Its cached blocks are not found again."""
    confirm(f"Have all that is cached of tenant {tenant} be computed again?", yes)
    with_stores(given, lambda stores: stores.tenants.rotate_secret(tenant, actor=actor()))
    print(f"new namespace secret of tenant {tenant}; now encrypt again: partywall store rotate")


@app.command("cache")
def cache(
    tenant: TenantId,
    admin_token: AdminTokenOption,
    url: AdminUrl = DEFAULT_ADMIN_URL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, at most.")] = 20,
    after: Annotated[
        int | None, typer.Option(min=1, help="Go on where an earlier page has ended.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a tenant has cached. It asks a running service; the last used comes first."""
    document = read_admin(url, admin_token, f"tenants/{tenant}/cache", limit=limit, after=after)
    if as_json:
        print_json(document)
        return
    print_table([_chain(one) for one in document["chains"]], "nothing of it is in the cache")
    if document["next"] is not None:
        print(f"... more: --after {document['next']}")
    print()
    print_table(
        [_day(one) for one in document["days"]],
        f"tenant {tenant} has used nothing in the last days",
    )


@store_command(app, "delete")
def delete(tenant: TenantId, yes: Confirmed = False, as_json: AsJson = False, **given: Any) -> None:
    """Delete a tenant. Its keys, prompts and stored responses go; what it used is printed."""
    from app.admin.documents import UsageDay

    confirm(f"Delete tenant {tenant} and everything of it?", yes)
    used = with_stores(given, lambda stores: stores.tenants.delete_tenant(tenant, actor=actor()))
    days = [UsageDay.of(day).model_dump(mode="json") for day in used]
    if as_json:
        print_json({"id": tenant, "usage": days})
    else:
        print(f"deleted tenant {tenant}")
        print_table(days, "it has used nothing")


def _chain(chain: dict[str, Any]) -> dict[str, Any]:
    """What a table shows of a conversation, or of a registered prompt."""
    prompt = chain["prompt"]
    return {
        "conversation": chain["conversation"],
        "prompt": prompt and f"{prompt['owner']}/{prompt['name']} {prompt['version']}",
        "tokens": chain["tokens"],
        "found": chain["found_tokens"],
        "leased": chain["leased_tokens"],
        "lease_s": round(chain["lease_seconds"]),
        "references": chain["references"],
        "requests": chain["requests"],
        "hits": chain["hits"],
        "idle_s": round(chain["idle_seconds"]),
        "age_s": round(chain["age_seconds"]),
    }


def _day(day: dict[str, Any]) -> dict[str, Any]:
    ratio = day["hit_ratio"]
    return day | {"hit_ratio": None if ratio is None else f"{ratio:.1%}"}


def _document(tenant: Tenant) -> dict[str, Any]:
    from app.admin.documents import TenantDocument

    return TenantDocument.of(tenant).model_dump(mode="json")


def _print(tenant: Tenant, as_json: bool) -> None:
    if as_json:
        print_json(_document(tenant))
    else:
        print_fields(_document(tenant))


def _patch(changes: list[str]) -> TenantPatch:
    """`limits.sockets=5` and its like. Raises `CommandError` that names the field."""
    from pydantic import TypeAdapter, ValidationError

    from app.admin.documents import TenantPatch
    from app.wire.errors import field_path

    document: dict[str, Any] = {}
    for change in changes:
        field, equals, text = change.partition("=")
        if not equals:
            raise typer.BadParameter(f"'{change}' is not FIELD=VALUE")
        group, _, name = field.rpartition(".")
        place = document.setdefault(group, {}) if group else document
        if not isinstance(place, dict) or name in place:
            raise typer.BadParameter(f"'{field}' is given twice")
        place[name] = None if text == "none" else text
    try:
        return TypeAdapter(TenantPatch).validate_python(document, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise CommandError(f"{field_path(first['loc'])}: {first['msg']}") from None
