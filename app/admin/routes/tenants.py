"""`/admin/tenants`: create, list, show, change and delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Required

from pydantic import Field

from app.admin.documents import Document, Id, Limits, TenantDocument, TenantPatch, UsageDay, edited
from app.admin.lists import Next, PageQuery, page
from app.admin.parameters import Asking, IfMatch, InBody, InQuery, Served, TenantId
from app.admin.problems import Complaint, clash, complaint
from app.admin.route import operations
from app.context import Service
from tenants.errors import InvalidField
from tenants.records import Tenant

router = operations("Tenants", "/tenants")


class NewTenant(TenantPatch, total=False):
    """A tenant to be; what is not given has its default."""

    id: Required[Id]


class CreatedTenant(TenantDocument):
    """A new tenant, and its first API key."""

    api_key: str = Field(description="Shown once, and never again.")


class TenantQuery(PageQuery):
    """A page of tenants."""

    after: Annotated[Id | None, Field(description="Those behind this id.")] = None


class TenantList(Document):
    """Tenants by id."""

    tenants: list[TenantDocument]
    next: Next


class DeletedTenant(Document):
    """What is left of a tenant: what it used."""

    id: str
    usage: list[UsageDay]


@router.post("", status_code=HTTPStatus.CREATED)
async def create_tenant(body: InBody[NewTenant], service: Served, by: Asking) -> CreatedTenant:
    """Create a tenant and its first API key."""
    draft = Tenant(id=body["id"], name=body["id"], namespace_secret=b"", created_at=0.0)
    await _check(service, draft, edited(draft, body))
    try:
        tenant, api_key = await service.stores.tenants.create_tenant(
            body["id"], edit=lambda draft: edited(draft, body), actor=by.name
        )
    except InvalidField as error:
        # The request is well-formed: the group that it names is not there.
        raise clash(complaint(error)) from error
    return CreatedTenant.of(tenant, api_key=api_key)


@router.get("")
async def list_tenants(query: InQuery[TenantQuery], service: Served) -> TenantList:
    """List tenants."""
    found = await service.stores.tenants.list_tenants(query.after, query.limit + 1)
    tenants, after = page(found, query.limit, lambda tenant: tenant.id)
    return TenantList(tenants=[TenantDocument.of(tenant) for tenant in tenants], next=after)


@router.get("/{tenant}")
async def show_tenant(tenant: TenantId, service: Served) -> TenantDocument:
    """Show a tenant."""
    return TenantDocument.of(await service.stores.tenants.get_tenant(tenant))


@router.get("/{tenant}/effective-limits")
async def show_limits(tenant: TenantId, service: Served) -> Limits:
    """Show what holds for a tenant.

    Its own limits, and this replica's defaults where it has none; null is no limit.
    """
    limits = (await service.stores.tenants.get_tenant(tenant)).limits
    return Limits.of(limits.over(service.stores.limiter.defaults))


@router.patch("/{tenant}")
async def update_tenant(
    tenant: TenantId, body: InBody[TenantPatch], expected: IfMatch, service: Served, by: Asking
) -> TenantDocument:
    """Change a tenant.

    Its status, its share, its limits: it holds for the next request on every replica. A disabled
    tenant's running streams end.
    """
    tenants = service.stores.tenants

    def edit(old: Tenant) -> Tenant:
        expected.require(TenantDocument.of(old))
        return edited(old, body)

    old = await tenants.get_tenant(tenant)
    await _check(service, old, edited(old, body))
    try:
        return TenantDocument.of(await tenants.update_tenant(tenant, edit, actor=by.name))
    except InvalidField as error:
        # The request is well-formed: the group that it names is not there.
        raise clash(complaint(error)) from error


@router.post("/{tenant}/rotate-secret")
async def rotate_tenant_secret(tenant: TenantId, service: Served, by: Asking) -> TenantDocument:
    """Give a tenant another namespace secret.

    Nothing of it that is cached is found again. What is stored can be read as before, until the
    command `partywall store rotate` has encrypted it again and lets go of the former secret.
    """
    return TenantDocument.of(await service.stores.tenants.rotate_secret(tenant, actor=by.name))


@router.delete("/{tenant}")
async def delete_tenant(tenant: TenantId, service: Served, by: Asking) -> DeletedTenant:
    """Delete a tenant.

    With its keys, prompts, stored responses, cached blocks and usage. It is gone for every request
    at once, and its running streams end; the answer comes some seconds later, with all its usage,
    which is kept nowhere else.
    """
    used = await service.stores.tenants.delete_tenant(tenant, actor=by.name)
    return DeletedTenant(id=tenant, usage=[UsageDay.of(day) for day in used])


async def _check(service: Service, old: Tenant, new: Tenant) -> None:
    """Raises `Problem` 409 for a new budget that nothing would count against, and where reserved
    and pinned blocks would leave others too few: half of the engine's stay for everybody.

    It is a guard against slips, not against two operators at the same moment; the engine copes with
    whatever it is told.
    """
    for name in ("soft_budget_micros", "hard_budget_micros"):
        budget = getattr(new.limits, name)
        is_new = budget is not None and budget != getattr(old.limits, name)
        if is_new and not service.prices.model.are_set:
            detail = "a budget needs prices, and this replica has no price file"
            raise clash(Complaint(field=f"limits.{name}", detail=detail))
    if _claim(new) <= _claim(old):
        return
    tenants = await service.stores.tenants.list_tenants()
    taken = sum(_claim(tenant) for tenant in tenants if tenant.id != new.id)
    left = service.engine.info.num_blocks // 2 - taken
    if _claim(new) > left:
        grown = new.reserved_blocks > old.reserved_blocks
        field = "reserved_blocks" if grown else "limits.pinned_blocks"
        detail = (
            f"reserved and pinned blocks of all tenants may be half of the engine's; {max(0, left)}"
            f" of those are left for this one, not {_claim(new)}"
        )
        raise clash(Complaint(field=field, detail=detail))


def _claim(tenant: Tenant) -> int:
    """How many blocks a tenant may keep from others."""
    return tenant.reserved_blocks + (tenant.limits.pinned_blocks or 0)
