"""Every key in Redis.

`{owner}` is a hash tag, of a tenant's id or a share group's owner name ("@id"): whatever belongs to
one of them lies in one slot of a cluster, and scripts on the way of a request stay within it.

An operator's write is the exception. It puts its line into the one audit stream, and with it the
list of tenants and the look-up of keys are written. On one server that is one script; over several
it is a step for each slot, see `tenants.storage.slots`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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
"""String: id of the last entry that is in a file, see `tenants.writes.audit`."""

AUDIT_KEEPER = "pw:audit-keeper"
"""String with expiry: which process keeps the audit."""

DEMONSTRATION = "pw:demonstration"
"""String: the demonstration that is under way, see `tenants.demonstrations`."""

UNFINISHED = "pw:unfinished"
"""Sorted set: `owner write` of the writes under way in a Redis Cluster, by when they began."""

OPERATOR_TOKENS = "pw:{#operators}:tokens"
"""Hash: id to `OperatorToken`, encrypted; its slot is that of no tenant's and no group's."""

OUTBOX_DUE = "pw:outbox:{all}:due"
"""Sorted set: ids of messages that are to be delivered, by when to try."""

OUTBOX_MESSAGES = "pw:outbox:{all}:messages"
"""Hash: id to the message, and `id:attempts` to how often it was tried."""


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
    DEMONSTRATION: "string",
    UNFINISHED: "zset",
    OPERATOR_TOKENS: "hash",
    OUTBOX_DUE: "zset",
    OUTBOX_MESSAGES: "hash",
}
_TYPES_BY_KIND: Final[dict[str, str]] = dict.fromkeys(
    ("response", "conversation", "completion", "suspended"), "string"
)
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


def api_key(digest: bytes) -> str:
    """String: id of the tenant whose key has this digest."""
    return f"pw:key:{digest.hex()}"


def idempotency(digest: bytes) -> str:
    """String with expiry: what became of a write whose idempotency key has this digest."""
    return f"pw:idempotency:{digest.hex()}"


def process(process_id: str) -> str:
    """String with expiry: a process that runs responses is there."""
    return f"pw:process:{process_id}"


def step(key: str, write_id: str) -> str:
    """String with expiry, in the slot of `key`: that a write has run its commands there."""
    tag = re.search(r"\{([^}]+)\}", key)
    return f"pw:step:{{{key if tag is None else tag[1]}}}:{write_id}"


def everything_of(owner: str) -> str:
    """Pattern of all keys in an owner's slot. Their ids hold no wildcards."""
    return f"pw:{{{owner}}}:*"


def stored_object(tenant_id: str, kind: str, object_id: str) -> str:
    """String with expiry, encrypted: a stored response, a conversation, a chat completion, or a
    response that a stopping service could not finish."""
    return f"pw:{{{tenant_id}}}:{kind}:{object_id}"


def _one(kind: str, redis_type: str) -> Callable[[str], str]:
    """An owner's one key of a kind."""
    _TYPES_BY_KIND[kind] = redis_type

    def key(owner: str) -> str:
        return f"pw:{{{owner}}}:{kind}"

    return key


def _several(kind: str, redis_type: str) -> Callable[[str, str], str]:
    """An owner's keys of a kind, by their names."""
    _TYPES_BY_KIND[kind] = redis_type

    def key(owner: str, name: str) -> str:
        return f"pw:{{{owner}}}:{kind}:{name}"

    return key


meta = _one("meta", "string")
"""The `Tenant` or `ShareGroup`, encrypted. It exists while this does."""

deleting = _one("deleting", "string")
"""What was `meta`, until the rest of a deleted owner is gone."""

unfinished = _one("unfinished", "hash")
"""Ids of writes to the commands in other slots that they still have to run."""

keys = _one("keys", "string")
"""The list of the tenant's `ApiKey`s, encrypted."""

members = _one("members", "set")
"""Ids of the tenants in a share group."""

prompts = _one("prompts", "hash")
"""Prompt name to which versions there are; outlives the prompt, see `system_prompts`."""

prompt = _several("prompt", "hash")
"""Version to its text, encrypted."""

prompt_bytes = _one("prompt-bytes", "hash")
"""Prompt name to the bytes of its versions, and all of them, see `prompt_room`."""

prompt_index = _several("index", "hash")
"""`version:engine` to `PromptIndex`."""

adapters = _one("adapters", "hash")
"""Adapter name to which versions there are; outlives the adapter, see `tenants.adapters`."""

adapter_upload = _one("adapter-upload", "string")
"""With expiry: name of the files of an adapter that are coming."""

_adapter = _several("adapter", "string")


def adapter(owner: str, name: str, version: int) -> str:
    """String, encrypted: `AdapterRecord` of a version."""
    return _adapter(owner, f"{name}:{version}")


_adapter_piece = _several("adapter-piece", "string")


def adapter_piece(owner: str, files: str, number: int) -> str:
    """String, encrypted: a piece of an adapter's files; with expiry until all have come."""
    return _adapter_piece(owner, f"{files}:{number}")


usage = _one("usage", "hash")
"""`DAY:quantity` to how much of it was used that UTC day."""

usage_batch = _several("usage-batch", "string")
"""With expiry: number of the last batch of usage that one process handed in."""

spending = _one("spending", "zset")
"""`request:billionths` reserved of a budget, by when its lease ends."""

presumed = _one("presumed", "hash")
"""With expiry: reservation to the day it was booked to unseen (`tenants.usage.usage`)."""

generation = _one("generation", "string")
"""Which of several owners of one id this is, see `tenants.storage.commits`."""

budget_told = _one("budget-told", "hash")
"""With expiry: `month:threshold:budget` of what was told to be reached."""

limits = _one("limits", "hash")
"""With expiry: a tenant's buckets and its day, see `tenants.limits.buckets`."""

streams = _one("streams", "zset")
"""With expiry: ids of admitted requests, by when their lease ends."""

held = _one("held", "hash")
"""With expiry: the tokens reserved for each running request."""

settled = _one("settled", "zset")
"""With expiry: requests admitted without Redis and settled here since, by when."""

sockets = _one("sockets", "zset")
"""With expiry: ids of open sockets, by when their lease ends."""

running = _several("running", "string")
"""With expiry: a response that runs in some process, as it was when it began."""

claimed = _several("claimed", "string")
"""With expiry: id of the response that runs in a conversation."""

stored = _one("stored", "zset")
"""With expiry: the keys of what is kept, by when they expire."""

stored_bytes = _one("stored-bytes", "hash")
"""With expiry: key of what is kept to its bytes, and "total"."""

listed = _one("listed", "zset")
"""With expiry: the keys of what is kept and listed, by when it was made."""

file = _several("file", "string")
"""With expiry, encrypted: `FileRecord` of an uploaded file."""

_file_piece = _several("file-piece", "string")


def file_piece(owner: str, file_id: str, number: int) -> str:
    """String with expiry, encrypted: a piece of an uploaded file."""
    return _file_piece(owner, f"{file_id}:{number}")


file_ends = _one("file-ends", "zset")
"""With expiry: ids of uploaded files, those that are coming included, by when they expire."""

file_bytes = _one("file-bytes", "hash")
"""With expiry: id of an uploaded file to its bytes, and ":total"."""

files = _one("files", "zset")
"""With expiry: ids of uploaded files, by when each was made."""

_text = _several("text", "set")


def prompt_text(owner: str, text_digest: bytes) -> str:
    """Set: `name:version` of the prompts with the text of this digest, see `tenants.at_rest`."""
    return _text(owner, text_digest.hex())
