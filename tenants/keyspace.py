"""Every Redis key name. The braces keep all of one tenant's keys in one cluster slot."""

from __future__ import annotations

PEPPER = "pw:pepper"
TENANTS = "pw:tenants"
CHANGES = "pw:changes"


def api_key(digest: str) -> str:
    """Which tenant an API key belongs to; in a slot of its own, apart from the tenant's."""
    return f"pw:key:{digest}"


def meta(tenant_id: str) -> str:
    """The tenant's record."""
    return f"pw:{{{tenant_id}}}:meta"


def keys(tenant_id: str) -> str:
    """Hash: API key id -> `ApiKey`."""
    return f"pw:{{{tenant_id}}}:keys"


def prompts(tenant_id: str) -> str:
    """Hash: prompt name -> its newest version number."""
    return f"pw:{{{tenant_id}}}:prompts"


def prompt(tenant_id: str, name: str) -> str:
    """Hash: version -> `SystemPrompt`."""
    return f"pw:{{{tenant_id}}}:prompt:{name}"


def prompt_texts(tenant_id: str) -> str:
    """Hash: SHA-256 of a text -> `name:version`."""
    return f"pw:{{{tenant_id}}}:prompt-texts"


def prompt_index(tenant_id: str, name: str) -> str:
    """Hash: `version:engine fingerprint` -> `PromptIndex`."""
    return f"pw:{{{tenant_id}}}:prompt-index:{name}"


def response(tenant_id: str, response_id: str) -> str:
    """A stored response and the conversation up to it."""
    return f"pw:{{{tenant_id}}}:response:{response_id}"


def everything_of(tenant_id: str) -> str:
    """A SCAN pattern for all of a tenant's keys."""
    return f"pw:{{{tenant_id}}}:*"
