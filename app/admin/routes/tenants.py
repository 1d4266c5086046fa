"""`/admin/tenants`: create, list, show, change and delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Required

from pydantic import Field

from app.admin.declaration import endpoint
from app.admin.documents import Document, Id, Limits, TenantDocument, UsageDay
from app.admin.endpoint import Call
from app.admin.lists import Next, PageSize, Query, page
from app.admin.problems import Complaint, clash, complaint
from app.admin.tenant_patch import TenantPatch, edited
from tenants.errors import InvalidField
from tenants.records import Tenant

_TAG = "Tenants"


class NewTenant(TenantPatch, total=False):
    """A tenant to be; what is not given has its default."""

    id: Required[Id]


class CreatedTenant(TenantDocument):
    """A new tenant, and its first API key."""

    api_key: str = Field(description="Shown once, and never again.")


class TenantQuery(Query):
    """A page of tenants."""

    limit: PageSize = 100
    after: Annotated[Id | None, Field(description="Those behind this id.")] = None


class TenantList(Document):
    """Tenants by id."""

    tenants: list[TenantDocument]
    next: Next


class DeletedTenant(Document):
    """What is left of a tenant: what it used."""

    id: str
    usage: list[UsageDay]


@endpoint("POST", "/tenants", _TAG, status=HTTPStatus.CREATED)
async def create_tenant(call: Call[NewTenant, None]) -> CreatedTenant:
    """Create a tenant and its first API key."""
    body = call.body
    draft = Tenant(id=body["id"], name=body["id"], namespace_secret=b"", created_at=0.0)
    _require_prices(call, draft, edited(draft, body))
    await _require_room(call, draft, edited(draft, body))
    try:
        tenant, api_key = await call.service.stores.tenants.create_tenant(
            body["id"], edit=lambda draft: edited(draft, body), actor=call.actor
        )
    except InvalidField as error:
        # The request is well-formed: the group that it names is not there.
        raise clash(complaint(error)) from error
    return CreatedTenant(**TenantDocument.of(tenant).model_dump(), api_key=api_key)


@endpoint("GET", "/tenants", _TAG)
async def list_tenants(call: Call[None, TenantQuery]) -> TenantList:
    """List tenants."""
    query = call.query
    found = await call.service.stores.tenants.list_tenants(query.after, query.limit + 1)
    tenants, after = page(found, query.limit, lambda tenant: tenant.id)
    return TenantList(tenants=[TenantDocument.of(tenant) for tenant in tenants], next=after)


@endpoint("GET", "/tenants/{tenant}", _TAG)
async def show_tenant(call: Call[None, None]) -> TenantDocument:
    """Show a tenant."""
    return TenantDocument.of(await call.service.stores.tenants.get_tenant(call.path["tenant"]))


@endpoint("GET", "/tenants/{tenant}/effective-limits", _TAG)
async def show_limits(call: Call[None, None]) -> Limits:
    """Show what holds for a tenant.

    Its own limits, and this replica's defaults where it has none; null is no limit.
    """
    stores = call.service.stores
    tenant = await stores.tenants.get_tenant(call.path["tenant"])
    return Limits.of(tenant.limits.over(stores.limiter.defaults))


@endpoint("PATCH", "/tenants/{tenant}", _TAG)
async def update_tenant(call: Call[TenantPatch, None]) -> TenantDocument:
    """Change a tenant.

    Its status, its share, its limits: it holds for the next request on every replica. A disabled
    tenant's running streams end.
    """
    tenants, tenant_id, body = call.service.stores.tenants, call.path["tenant"], call.body

    def edit(tenant: Tenant) -> Tenant:
        call.require_match(TenantDocument.of(tenant))
        return edited(tenant, body)

    tenant = await tenants.get_tenant(tenant_id)
    _require_prices(call, tenant, edited(tenant, body))
    await _require_room(call, tenant, edited(tenant, body))
    try:
        return TenantDocument.of(await tenants.update_tenant(tenant_id, edit, actor=call.actor))
    except InvalidField as error:
        # The request is well-formed: the group that it names is not there.
        raise clash(complaint(error)) from error


@endpoint("POST", "/tenants/{tenant}/rotate-secret", _TAG)
async def rotate_tenant_secret(call: Call[None, None]) -> TenantDocument:
    """Give a tenant another namespace secret.

    Nothing of it that is cached is found again. What is stored can be read as before, until the
    command `partywall store rotate` has encrypted it again and lets go of the former secret.
    """
    tenants, tenant_id = call.service.stores.tenants, call.path["tenant"]
    return TenantDocument.of(await tenants.rotate_secret(tenant_id, actor=call.actor))


@endpoint("DELETE", "/tenants/{tenant}", _TAG)
async def delete_tenant(call: Call[None, None]) -> DeletedTenant:
    """Delete a tenant.

    With its keys, prompts, stored responses, cached blocks and usage. It is gone for every request
    at once, and its running streams end; the answer comes some seconds later, with all its usage,
    which is kept nowhere else.
    """
    tenant_id = call.path["tenant"]
    used = await call.service.stores.tenants.delete_tenant(tenant_id, actor=call.actor)
    return DeletedTenant(id=tenant_id, usage=[UsageDay.of(day) for day in used])


async def _require_room(call: Call[Any, None], old: Tenant, new: Tenant) -> None:
    """Raises `Problem` 409 where reserved and pinned blocks would leave others too few.

    Half of the engine's blocks stay for everybody. It is a guard against slips, not against two
    operators at the same moment; the engine copes with whatever it is told.
    """
    if _claim(new) <= _claim(old):
        return
    tenants = await call.service.stores.tenants.list_tenants()
    taken = sum(_claim(tenant) for tenant in tenants if tenant.id != new.id)
    left = call.service.engine.info.num_blocks // 2 - taken
    if _claim(new) > left:
        grown = new.reserved_blocks > old.reserved_blocks
        field = "reserved_blocks" if grown else "limits.pinned_blocks"
        detail = (
            f"reserved and pinned blocks of all tenants may be half of the engine's; {max(0, left)}"
            f" of those are left for this one, not {_claim(new)}"
        )
        raise clash(Complaint(field=field, detail=detail))


def _require_prices(call: Call[Any, None], old: Tenant, new: Tenant) -> None:
    """Raises `Problem` 409 for a new budget that nothing would count against."""
    for name in ("soft_budget_micros", "hard_budget_micros"):
        budget = getattr(new.limits, name)
        is_new = budget is not None and budget != getattr(old.limits, name)
        if is_new and not call.service.prices.are_set:
            detail = "a budget needs prices, and this replica has no price file"
            raise clash(Complaint(field=f"limits.{name}", detail=detail))


def _claim(tenant: Tenant) -> int:
    """How many blocks a tenant may keep from others."""
    return tenant.reserved_blocks + (tenant.limits.pinned_blocks or 0)


ENDPOINTS = [
    create_tenant,
    list_tenants,
    show_tenant,
    show_limits,
    update_tenant,
    rotate_tenant_secret,
    delete_tenant,
]
