"""Every key in Redis.

`{owner}` is a hash tag, of a tenant's id or a share group's owner name ("@id"): whatever belongs to
one of them lies in one slot of a cluster, and scripts on the way of a request stay within it.

An operator's write is the exception. It puts its line into the one audit stream, and with it the
list of tenants and the look-up of keys are written. On one server that is one script; over several
it is a step for each slot, see `tenants.storage.slots`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

PEPPER = "pw:pepper"
"""String: fingerprints of the peppers that are in use, 32 bytes each, the newest first."""

SCHEMA = "pw:schema"
"""String: which form all records have, see `tenants.storage.schema`."""

CHANGES = "pw:changes"

PROBE = "pw:probe"
"""Never there: writing nothing to it shows whether writes are taken."""

TENANTS = "pw:tenants"
"""Sorted set, all scores 0: ids of the tenants there are."""

GROUPS = "pw:groups"
"""Sorted set, all scores 0: ids of the share groups there are."""

AUDIT = "pw:audit"
"""Stream: every write of an operator, see `tenants.writes.audit`."""

AUDIT_WRITTEN = "pw:audit-written"
"""String: id of the last entry that is in a file, see `tenants.writes.audit_keeping`."""

AUDIT_KEEPER = "pw:audit-keeper"
"""String with expiry: which process keeps the audit."""

UNFINISHED = "pw:unfinished"
"""Sorted set: `owner write` of the writes under way in a Redis Cluster, by when they began."""

OPERATOR_TOKENS = "pw:{#operators}:tokens"
"""Hash: id to `OperatorToken`, encrypted; its slot is that of no tenant's and no group's."""

OUTBOX_DUE = "pw:outbox:{all}:due"
"""Sorted set: ids of messages that are to be delivered, by when to try."""

OUTBOX_MESSAGES = "pw:outbox:{all}:messages"
"""Hash: id to the message, and `id:attempts` to how often it was tried."""


def api_key(digest: bytes) -> str:
    """String: id of the tenant whose key has this digest."""
    return f"pw:key:{digest.hex()}"


EVERY_OWNERS = "pw:{*"
"""Pattern of all keys in any owner's slot."""

_OF_OWNER = re.compile(r"pw:\{([^}]+)\}:([^:]+)(?::(.+))?")


_TYPES: Final[Mapping[str, str]] = {
    PEPPER: "string",
    SCHEMA: "string",
    TENANTS: "zset",
    GROUPS: "zset",
    AUDIT: "stream",
    AUDIT_WRITTEN: "string",
    AUDIT_KEEPER: "string",
    UNFINISHED: "zset",
    OPERATOR_TOKENS: "hash",
    OUTBOX_DUE: "zset",
    OUTBOX_MESSAGES: "hash",
}
_TYPES_BY_KIND: Final[Mapping[str, str]] = {
    **dict.fromkeys(("meta", "deleting", "generation", "keys", "usage-batch", "claimed"), "string"),
    **dict.fromkeys(("response", "conversation", "completion", "running", "suspended"), "string"),
    **dict.fromkeys(("unfinished", "prompts", "prompt", "index", "usage", "budget-told"), "hash"),
    **dict.fromkeys(("limits", "held", "presumed", "prompt-bytes", "stored-bytes"), "hash"),
    **dict.fromkeys(("members", "text"), "set"),
    **dict.fromkeys(("spending", "streams", "settled", "sockets", "stored", "listed"), "zset"),
}
_STRINGS: Final = re.compile(r"pw:(key|idempotency|step|process):.+")


def type_of(key: str) -> str | None:
    """What lies under a key, in Redis's words; `None` for a key that is none of ours."""
    if key in _TYPES:
        return _TYPES[key]
    if _STRINGS.fullmatch(key):
        return "string"
    match = _OF_OWNER.fullmatch(key)
    return None if match is None else _TYPES_BY_KIND.get(match[2])


def owner_kind_name(key: str) -> tuple[str, str, str | None]:
    """Whose a key is, of what kind, and the name behind that, if any, as the functions here put it.

    Raises `ValueError` for a key that is nobody's.
    """
    match = _OF_OWNER.fullmatch(key)
    if match is None:
        raise ValueError(f"{key!r} is no key in an owner's slot")
    return match[1], match[2], match[3]


def everything_of(owner: str) -> str:
    """Pattern of all keys in an owner's slot. Their ids hold no wildcards."""
    return f"pw:{{{owner}}}:*"


def meta(owner: str) -> str:
    """String: the `Tenant` or `ShareGroup`, encrypted. It exists while this does."""
    return f"pw:{{{owner}}}:meta"


def deleting(owner: str) -> str:
    """String: what was `meta`, until the rest of a deleted owner is gone."""
    return f"pw:{{{owner}}}:deleting"


def unfinished(owner: str) -> str:
    """Hash: ids of writes to the commands in other slots that they still have to run."""
    return f"pw:{{{owner}}}:unfinished"


def step(key: str, write_id: str) -> str:
    """String with expiry, in the slot of `key`: that a write has run its commands there."""
    tag = re.search(r"\{([^}]+)\}", key)
    return f"pw:step:{{{key if tag is None else tag[1]}}}:{write_id}"


def keys(tenant_id: str) -> str:
    """String: the list of the tenant's `ApiKey`s, encrypted."""
    return f"pw:{{{tenant_id}}}:keys"


def members(group_owner: str) -> str:
    """Set: ids of the tenants in a share group."""
    return f"pw:{{{group_owner}}}:members"


def prompts(owner: str) -> str:
    """Hash: prompt name to which versions there are; outlives the prompt, see `system_prompts`."""
    return f"pw:{{{owner}}}:prompts"


def prompt(owner: str, name: str) -> str:
    """Hash: version to its text, encrypted."""
    return f"pw:{{{owner}}}:prompt:{name}"


def prompt_bytes(owner: str) -> str:
    """Hash: prompt name to the bytes of its versions, and all of them, see `prompt_room`."""
    return f"pw:{{{owner}}}:prompt-bytes"


def prompt_text(owner: str, text_digest: bytes) -> str:
    """Set: `name:version` of the prompts with the text of this digest, see `tenants.at_rest`."""
    return f"pw:{{{owner}}}:text:{text_digest.hex()}"


def prompt_index(owner: str, name: str) -> str:
    """Hash: `version:engine` to `PromptIndex`."""
    return f"pw:{{{owner}}}:index:{name}"


def stored_object(tenant_id: str, kind: str, object_id: str) -> str:
    """String with expiry: a stored response, a conversation or a chat completion."""
    return f"pw:{{{tenant_id}}}:{kind}:{object_id}"


def usage(owner: str) -> str:
    """Hash: `DAY:quantity` to how much of it was used that UTC day."""
    return f"pw:{{{owner}}}:usage"


def usage_batch(owner: str, meter_id: str) -> str:
    """String with expiry: number of the last batch of usage that one process handed in."""
    return f"pw:{{{owner}}}:usage-batch:{meter_id}"


def spending(tenant_id: str) -> str:
    """Sorted set: `request:billionths` reserved of a budget, by when its lease ends."""
    return f"pw:{{{tenant_id}}}:spending"


def presumed(tenant_id: str) -> str:
    """Hash with expiry: reservation to the day it was booked to unseen (`tenants.usage.holds`)."""
    return f"pw:{{{tenant_id}}}:presumed"


def generation(owner: str) -> str:
    """String: which of several owners of one id this is, see `tenants.storage.generations`."""
    return f"pw:{{{owner}}}:generation"


def budget_told(tenant_id: str) -> str:
    """Hash with expiry: `month:threshold:budget` of what was told to be reached."""
    return f"pw:{{{tenant_id}}}:budget-told"


def limits(tenant_id: str) -> str:
    """Hash with expiry: a tenant's buckets and its day, see `tenants.limits.scripts`."""
    return f"pw:{{{tenant_id}}}:limits"


def streams(tenant_id: str) -> str:
    """Sorted set with expiry: ids of admitted requests, by when their lease ends."""
    return f"pw:{{{tenant_id}}}:streams"


def held(tenant_id: str) -> str:
    """Hash with expiry: the tokens reserved for each running request."""
    return f"pw:{{{tenant_id}}}:held"


def settled(tenant_id: str) -> str:
    """Sorted set with expiry: requests admitted without Redis and settled here since, by when."""
    return f"pw:{{{tenant_id}}}:settled"


def sockets(tenant_id: str) -> str:
    """Sorted set with expiry: ids of open sockets, by when their lease ends."""
    return f"pw:{{{tenant_id}}}:sockets"


def running(tenant_id: str, response_id: str) -> str:
    """String with expiry: a response that runs in some process, as it was when it began."""
    return f"pw:{{{tenant_id}}}:running:{response_id}"


def process(process_id: str) -> str:
    """String with expiry: a process that runs responses is there."""
    return f"pw:process:{process_id}"


def claimed(tenant_id: str, conversation_id: str) -> str:
    """String with expiry: id of the response that runs in a conversation."""
    return f"pw:{{{tenant_id}}}:claimed:{conversation_id}"


def stored(tenant_id: str) -> str:
    """Sorted set with expiry: the keys of what is kept, by when they expire."""
    return f"pw:{{{tenant_id}}}:stored"


def stored_bytes(tenant_id: str) -> str:
    """Hash with expiry: key of what is kept to its bytes, and "total"."""
    return f"pw:{{{tenant_id}}}:stored-bytes"


def listed(tenant_id: str) -> str:
    """Sorted set with expiry: the keys of what is kept and listed, by when it was made."""
    return f"pw:{{{tenant_id}}}:listed"


def suspended(tenant_id: str, response_id: str) -> str:
    """String with expiry: a response that a stopping service could not finish."""
    return f"pw:{{{tenant_id}}}:suspended:{response_id}"


def idempotency(digest: bytes) -> str:
    """String with expiry: what became of a write whose idempotency key has this digest."""
    return f"pw:idempotency:{digest.hex()}"
