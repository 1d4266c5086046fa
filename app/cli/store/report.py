"""`partywall usage` and `partywall audit-log`: what was used, and who changed what."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any

import typer

from app.cli.options import settings_command
from app.cli.printing import AsJson, show_rows
from app.cli.store.store import STORE_FIELDS, TenantId, with_stores

_DAY = ["%Y-%m-%d"]


@settings_command(STORE_FIELDS)
def usage(
    tenant: TenantId,
    since: Annotated[
        datetime | None, typer.Option(formats=_DAY, metavar="YYYY-MM-DD", help="First day, in UTC.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(formats=_DAY, metavar="YYYY-MM-DD", help="Last day, in UTC.")
    ] = None,
    by_adapter: Annotated[
        bool, typer.Option("--by-adapter", help="What it used with each adapter.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Show what a tenant used, by day."""
    from app.admin.documents import AdapterUsageDay, UsageDay, usage_csv
    from app.stores import Stores

    first = date.min if since is None else since.date()
    last = date.max if until is None else until.date()

    async def by_day(stores: Stores) -> list[UsageDay]:
        await stores.tenants.get_tenant(tenant)
        return list(map(UsageDay.of, await stores.usage.read(tenant, first, last)))

    async def by_day_and_adapter(stores: Stores) -> list[AdapterUsageDay]:
        await stores.tenants.get_tenant(tenant)
        used = await stores.usage.read_by_adapter(tenant, first, last)
        return list(map(AdapterUsageDay.of, used))

    if by_adapter:
        parts = with_stores(given, by_day_and_adapter)
        csv, empty = usage_csv(AdapterUsageDay, parts), f"tenant {tenant} has used no adapter"
        documents = [part.model_dump(mode="json") for part in parts]
    else:
        days = with_stores(given, by_day)
        csv, empty = usage_csv(UsageDay, days), f"tenant {tenant} has used nothing"
        documents = [day.model_dump(mode="json") for day in days]
    if as_csv:
        print(csv, end="")
    else:
        show_rows(documents, empty, as_json)


@settings_command(STORE_FIELDS)
def audit_log(
    owner: Annotated[
        str | None,
        typer.Option(help="Only what was done to a tenant, or to '@' and a share group."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many entries, the newest first.")] = 20,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Show who changed what."""
    from app.admin.documents import AuditDocument

    entries = with_stores(given, lambda stores: stores.audit.read(owner=owner, limit=limit))
    documents = [AuditDocument.of(entry).model_dump(mode="json") for entry in entries]
    columns = ("at", "actor", "action", "owner", "target")
    show_rows(documents, "nothing was changed yet", as_json, columns)
