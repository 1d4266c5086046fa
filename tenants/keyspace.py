"""Every key in Redis.

`{tenant}` is a hash tag: whatever belongs to one tenant lies in one slot of a cluster, so that one
script may touch it all. The look-up of an API key lies in a slot of its own.
"""

from __future__ import annotations

PEPPER = "pw:pepper"
TENANTS = "pw:tenants"
CHANGES = "pw:changes"


def api_key(digest: bytes) -> str:
    """String: id of the tenant whose key has this digest."""
    return f"pw:key:{digest.hex()}"


def everything_of(tenant_id: str) -> str:
    """Pattern of all keys in a tenant's slot. Tenant ids hold no wildcards."""
    return f"pw:{{{tenant_id}}}:*"


def meta(tenant_id: str) -> str:
    """String: the `Tenant`. A tenant exists while this does."""
    return f"pw:{{{tenant_id}}}:meta"


def deleting(tenant_id: str) -> str:
    """String: what was `meta`, until the rest of a deleted tenant is gone."""
    return f"pw:{{{tenant_id}}}:deleting"


def keys(tenant_id: str) -> str:
    """String: the list of the tenant's `ApiKey`s."""
    return f"pw:{{{tenant_id}}}:keys"


def prompts(tenant_id: str) -> str:
    """Set: names of the tenant's prompts."""
    return f"pw:{{{tenant_id}}}:prompts"


def prompt_versions(tenant_id: str) -> str:
    """Hash: prompt name to its last version; outlives the prompt, so that no version is reused."""
    return f"pw:{{{tenant_id}}}:versions"


def prompt(tenant_id: str, name: str) -> str:
    """Hash: version to `SystemPrompt`."""
    return f"pw:{{{tenant_id}}}:prompt:{name}"


def prompt_text(tenant_id: str, text_digest: bytes) -> str:
    """Set: `name:version` of the prompts with the text of this SHA-256."""
    return f"pw:{{{tenant_id}}}:text:{text_digest.hex()}"


def prompt_index(tenant_id: str, name: str) -> str:
    """Hash: `version:engine` to `PromptIndex`."""
    return f"pw:{{{tenant_id}}}:index:{name}"


def response(tenant_id: str, response_id: str) -> str:
    """String with expiry: a stored response."""
    return f"pw:{{{tenant_id}}}:response:{response_id}"
