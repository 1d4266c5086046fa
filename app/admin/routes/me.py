"""`/admin/me`: whose a token is, and what it is held to, so that a page offers what it may do."""

from __future__ import annotations

from pydantic import Field

from app.admin.parameters import Asking
from app.admin.route import operations
from app.admin.token import OF_ITSELF
from app.admin.wire.documents import Document
from tenants.records import TokenRole

router = operations("Admin tokens")


class OperatorDocument(Document):
    """Who asks."""

    name: str = Field(description="As in the audit.")
    role: TokenRole
    tenant: str | None = Field(description="Of whom alone they see anything.")


@router.get(OF_ITSELF)
async def show_me(operator: Asking) -> OperatorDocument:
    """Show who asks, and what they are held to."""
    role: TokenRole = "read" if operator.reads_only else "admin"
    return OperatorDocument(name=operator.name, role=role, tenant=operator.tenant)
