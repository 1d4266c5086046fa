"""`/admin/tenants/{tenant}/keys`: create, list, show, change, rotate and revoke API keys."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from app.admin.declaration import endpoint
from app.admin.documents import WHOLE, YEAR_SECONDS, Document, KeyDocument, Lifetime, Name, expiry
from app.admin.endpoint import Call
from tenants.records import ApiKey

_TAG = "API keys"

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


@endpoint("POST", "/tenants/{tenant}/keys", _TAG, status=HTTPStatus.CREATED)
async def create_key(call: Call[NewKey, None]) -> CreatedKey:
    """Create an API key."""
    key, api_key = await call.service.stores.tenants.create_key(
        call.path["tenant"],
        call.body.name,
        expires_at=expiry(call.body.expires_in_seconds),
        actor=call.actor,
    )
    return _created(key, api_key)


@endpoint("GET", "/tenants/{tenant}/keys", _TAG)
async def list_keys(call: Call[None, None]) -> KeyList:
    """List a tenant's API keys."""
    keys = await call.service.stores.tenants.list_keys(call.path["tenant"])
    return KeyList(keys=[KeyDocument.of(key) for key in keys])


@endpoint("GET", "/tenants/{tenant}/keys/{key}", _TAG)
async def show_key(call: Call[None, None]) -> KeyDocument:
    """Show an API key."""
    path = call.path
    return KeyDocument.of(await call.service.stores.tenants.get_key(path["tenant"], path["key"]))


@endpoint("PATCH", "/tenants/{tenant}/keys/{key}", _TAG)
async def update_key(call: Call[KeyPatch, None]) -> KeyDocument:
    """Change an API key: its name, or when it expires."""

    def edit(key: ApiKey) -> ApiKey:
        call.require_match(KeyDocument.of(key))
        key = replace(key, name=call.body.get("name", key.name))
        if "expires_in_seconds" not in call.body:
            return key
        return replace(key, expires_at=expiry(call.body["expires_in_seconds"]))

    path, tenants = call.path, call.service.stores.tenants
    return KeyDocument.of(
        await tenants.update_key(path["tenant"], path["key"], edit, actor=call.actor)
    )


@endpoint(
    "POST",
    "/tenants/{tenant}/keys/{key}/rotate",
    _TAG,
    status=HTTPStatus.CREATED,
    body_required=False,
)
async def rotate_key(call: Call[Rotation, None]) -> CreatedKey:
    """Rotate an API key.

    The new one has the same name. The old one ends at once, or after `overlap_seconds`.
    """
    key, api_key = await call.service.stores.tenants.rotate_key(
        call.path["tenant"], call.path["key"], call.body.overlap_seconds, actor=call.actor
    )
    return _created(key, api_key)


@endpoint("DELETE", "/tenants/{tenant}/keys/{key}", _TAG, status=HTTPStatus.NO_CONTENT)
async def revoke_key(call: Call[None, None]) -> None:
    """Revoke an API key.

    Its open streams and sockets end within a second, on every replica.
    """
    path = call.path
    await call.service.stores.tenants.revoke_key(path["tenant"], path["key"], actor=call.actor)


def _created(key: ApiKey, api_key: str) -> CreatedKey:
    return CreatedKey(**KeyDocument.of(key).model_dump(), api_key=api_key)


ENDPOINTS = [create_key, list_keys, show_key, update_key, revoke_key, rotate_key]
