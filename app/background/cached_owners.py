"""Who may have something in the cache, and under which secrets: tenants and share groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from app.generation.engine_request import tenant_share
from engine.api import TenantShare
from tenants.records import ShareGroup, Tenant


@dataclass(frozen=True)
class Secrets:
    """The keys of an owner's namespaces, and of those of the group that it is in."""

    own: bytes
    group: str | None = None
    of_group: bytes = b""

    @classmethod
    def of(cls, tenant: Tenant, group: ShareGroup | None) -> Secrets:
        """Those of a tenant."""
        if group is None:
            return cls(tenant.namespace_key)
        return cls(tenant.namespace_key, group.id, group.namespace_key)

    @property
    def told_apart(self) -> str:
        """What is another for others, and shows nothing of them."""
        return blake2b(self.own + self.of_group, digest_size=16).hexdigest()

    def replace(self, before: Secrets) -> bool:
        """Whether there were others in the place of some of these."""
        is_same_group = self.group == before.group
        return self.own != before.own or (is_same_group and self.of_group != before.of_group)


@dataclass(frozen=True)
class Owner:
    """A tenant or a share group, as far as its prompts are concerned."""

    id: str
    secrets: Secrets
    share: TenantShare
    generation: str

    @classmethod
    def tenant(cls, tenant: Tenant, group: ShareGroup | None) -> Owner:
        """A tenant, and the group that it is in."""
        share = tenant_share(tenant)
        return cls(tenant.id, Secrets.of(tenant, group), share, tenant.generation)

    @classmethod
    def group(cls, group: ShareGroup) -> Owner:
        """A share group."""
        secrets = Secrets(group.namespace_key)
        return cls(group.owner, secrets, TenantShare(), group.generation)

    @property
    def namespace_key(self) -> bytes:
        """The key that the blocks of the owner's prompts are hashed under."""
        return self.secrets.own


def all_secrets(tenants: Iterable[Tenant], groups: Iterable[ShareGroup]) -> dict[str, Secrets]:
    """Of all owners who may have something in the cache."""
    by_id = {group.id: group for group in groups}
    found = {group.owner: Secrets(group.namespace_key) for group in by_id.values()}
    for tenant in tenants:
        if tenant.cache == "on":
            found[tenant.id] = Secrets.of(tenant, by_id.get(tenant.share_group or ""))
    return found
