"""`/admin/tenants/{tenant}/keys`: create, list, show, change, rotate and revoke API keys."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from app.admin.documents import WHOLE, YEAR_SECONDS, Document, KeyDocument, Lifetime, Name
from app.admin.parameters import Asking, IfMatch, InBody, KeyInPath, Served, TenantId
from app.admin.route import operations
from tenants.records import ApiKey, end_of

router = operations("API keys", "/tenants/{tenant}/keys")

Overlap = Annotated[int, Field(ge=0, le=YEAR_SECONDS), WHOLE]


class KeyPatch(TypedDict, total=False):
    """What shall be changed, and nothing else."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    name: Annotated[Name, Field(description="What the key is for.")]
    expires_in_seconds: Lifetime


class NewKey(BaseModel):
    """A key to be."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name = Field(description="What the key is for.")
    expires_in_seconds: Lifetime = None


class Rotation(BaseModel):
    """How long the old key stays valid beside the new one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    overlap_seconds: Overlap = 0


class CreatedKey(KeyDocument):
    """A new API key."""

    api_key: str = Field(description="Shown once, and never again.")


class KeyList(Document):
    """All API keys of a tenant, the newest first; a dead one may be among them for a while."""

    keys: list[KeyDocument]


@router.post("", status_code=HTTPStatus.CREATED)
async def create_key(
    tenant: TenantId, body: InBody[NewKey], service: Served, by: Asking
) -> CreatedKey:
    """Create an API key."""
    key, api_key = await service.stores.tenants.create_key(
        tenant, body.name, expires_at=end_of(body.expires_in_seconds), actor=by.name
    )
    return CreatedKey.of(key, api_key=api_key)


@router.get("")
async def list_keys(tenant: TenantId, service: Served) -> KeyList:
    """List a tenant's API keys."""
    keys = await service.stores.tenants.list_keys(tenant)
    return KeyList(keys=[KeyDocument.of(key) for key in keys])


@router.get("/{key}")
async def show_key(tenant: TenantId, key: KeyInPath, service: Served) -> KeyDocument:
    """Show an API key."""
    return KeyDocument.of(await service.stores.tenants.get_key(tenant, key))


@router.patch("/{key}")
async def update_key(
    tenant: TenantId,
    key: KeyInPath,
    body: InBody[KeyPatch],
    expected: IfMatch,
    service: Served,
    by: Asking,
) -> KeyDocument:
    """Change an API key: its name, or when it expires."""

    def edit(old: ApiKey) -> ApiKey:
        expected.require(KeyDocument.of(old))
        new = replace(old, name=body.get("name", old.name))
        if "expires_in_seconds" not in body:
            return new
        return replace(new, expires_at=end_of(body["expires_in_seconds"]))

    tenants = service.stores.tenants
    return KeyDocument.of(await tenants.update_key(tenant, key, edit, actor=by.name))


@router.post("/{key}/rotate", status_code=HTTPStatus.CREATED)
async def rotate_key(
    tenant: TenantId,
    key: KeyInPath,
    service: Served,
    by: Asking,
    body: InBody[Rotation] = Rotation(),  # noqa: B008 - it does not change
) -> CreatedKey:
    """Rotate an API key.

    The new one has the same name. The old one ends at once, or after `overlap_seconds`.
    """
    new, api_key = await service.stores.tenants.rotate_key(
        tenant, key, body.overlap_seconds, actor=by.name
    )
    return CreatedKey.of(new, api_key=api_key)


@router.delete("/{key}", status_code=HTTPStatus.NO_CONTENT)
async def revoke_key(tenant: TenantId, key: KeyInPath, service: Served, by: Asking) -> None:
    """Revoke an API key.

    Its open streams and sockets end within a second, on every replica.
    """
    await service.stores.tenants.revoke_key(tenant, key, actor=by.name)
