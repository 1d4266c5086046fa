"""What an operator may set on a tenant, over HTTP and on the command line."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from app.admin.wire.documents import Blocks, Cache, Id, Limits, Name, Status, Weight
from tenants.records import UNLIMITED, Tenant


class TenantPatch(TypedDict, total=False):
    """What shall be changed, and nothing else; of `limits`, too, only those that are named."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # type: ignore[misc]

    name: Annotated[Name, Field(description="For people; the id by default.")]
    status: Annotated[Status, Field(description="Disabled: every request is refused with 403.")]
    weight: Annotated[Weight, Field(description="Its share of the engine beside others.")]
    reserved_blocks: Annotated[
        Blocks, Field(description="Cached KV blocks that are never evicted for other tenants.")
    ]
    cache: Annotated[
        Cache, Field(description="Off: its requests neither find KV blocks nor leave any.")
    ]
    share_group: Annotated[Id | None, Field(description="The group whose prompts it may use.")]
    limits: Limits


def edited(tenant: Tenant, patch: TenantPatch) -> Tenant:
    """The tenant with the patch applied."""
    changes: dict[str, Any] = {
        name: value for name, value in patch.items() if name not in ("id", "limits")
    }
    if "limits" in patch:
        given = patch["limits"].model_dump(exclude_unset=True)
        limits = {name: UNLIMITED if one == "unlimited" else one for name, one in given.items()}
        changes["limits"] = replace(tenant.limits, **limits)
    return replace(tenant, **changes)
