"""`/admin/me`: whose a token is, and what it is held to, so that a page offers what it may do."""

from __future__ import annotations

from pydantic import Field

from app.admin.declaration import endpoint
from app.admin.documents import Document
from app.admin.endpoint import Call
from app.admin.token import OF_ITSELF
from tenants.records import TokenRole


class OperatorDocument(Document):
    """Who asks."""

    name: str = Field(description="As in the audit.")
    role: TokenRole
    tenant: str | None = Field(description="Of whom alone they see anything.")


@endpoint("GET", OF_ITSELF, "Admin tokens")
async def show_me(call: Call[None, None]) -> OperatorDocument:
    """Show who asks, and what they are held to."""
    operator = call.operator
    role: TokenRole = "read" if operator.reads_only else "admin"
    return OperatorDocument(name=operator.name, role=role, tenant=operator.tenant)


ENDPOINTS = [show_me]
