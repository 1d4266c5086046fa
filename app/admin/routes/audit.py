"""`/admin/audit`: who changed what, from what to what, and when."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from app.admin.documents import AuditDocument, Document
from app.admin.lists import Next, PageQuery, page
from app.admin.parameters import InQuery, Served
from app.admin.route import operations

router = operations("Audit")

EntryId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,15}-[0-9]{1,15}$")]
Owner = Annotated[str, StringConstraints(pattern=r"^@?[a-z0-9-]{1,63}$")]


class AuditQuery(PageQuery):
    """A page of entries."""

    after: Annotated[EntryId | None, Field(description="Those older than this one.")] = None
    owner: Annotated[
        Owner | None, Field(description="Those of a tenant, or of '@' and a share group.")
    ] = None


class AuditList(Document):
    """Writes that happened, the newest first."""

    entries: list[AuditDocument]
    next: Next


@router.get("/audit")
async def list_audit(query: InQuery[AuditQuery], service: Served) -> AuditList:
    """List what operators have changed."""
    found = await service.stores.audit.read(
        before=query.after, owner=query.owner, limit=query.limit + 1
    )
    entries, after = page(found, query.limit, lambda entry: entry.id)
    return AuditList(entries=[AuditDocument.of(entry) for entry in entries], next=after)
