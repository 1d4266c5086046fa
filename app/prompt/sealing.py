"""Text that leaves with a client and comes back: authenticated, and bound to its tenant.

The client's own conversation is no secret from the client; what the seal proves is that this
service wrote the text for this tenant, so that a compaction item cannot be forged or moved.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

from engine.blocks.hashing import derive_key
from tenants.records import Tenant

_TAG_BYTES = 16


def seal(tenant: Tenant, text: str) -> str:
    """`text` and its tag under a key of the tenant's, as one URL-safe string."""
    data = text.encode()
    return urlsafe_b64encode(_tag(tenant, data) + data).decode()


def unseal(tenant: Tenant, sealed: str) -> str | None:
    """The text, or `None` where this service did not seal it for this tenant."""
    try:
        raw = urlsafe_b64decode(sealed.encode("ascii"))
    except ValueError:
        return None
    tag, data = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
    return data.decode() if hmac.compare_digest(tag, _tag(tenant, data)) else None


def _tag(tenant: Tenant, data: bytes) -> bytes:
    key = derive_key(tenant.namespace_key, "compaction")
    return blake2b(data, key=key, digest_size=_TAG_BYTES).digest()
