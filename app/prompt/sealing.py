"""What leaves with a client and comes back: authenticated, and bound to its tenant.

The client's own conversation is no secret from the client; what the seal proves is that this
service wrote it for this tenant, so that a compaction item cannot be forged or moved. The client
can read what is sealed: the text of a registered prompt must not be.

What a model thought is encrypted besides: whoever stores it for a later request need not read it.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from engine.blocks.hashing import derive_key
from tenants.records import Tenant

_TAG_BYTES = 16
_NONCE_BYTES = 12


class PromptOrigin(msgspec.Struct, frozen=True):
    """The version of a registered prompt that a conversation is under, and how it was filled in.

    Without `variables` it is the prompt's text as it stands.
    """

    owner: str
    name: str
    version: int
    variables: dict[str, str] | None = None


class Summary(msgspec.Struct, frozen=True):
    """What stands for an earlier conversation: its summary, and which prompt it was under."""

    text: str
    origin: PromptOrigin | None = None


_decoder = msgspec.json.Decoder(Summary)


def seal(tenant: Tenant, summary: Summary) -> str:
    """`summary` and its tag under a key of the tenant's, as one URL-safe string."""
    data = msgspec.json.encode(summary)
    return urlsafe_b64encode(_tag_under(tenant.namespace_key, data) + data).decode()


def unseal(tenant: Tenant, sealed: str) -> Summary | None:
    """The summary, or `None` where this service did not seal it for this tenant."""
    try:
        raw = urlsafe_b64decode(sealed.encode("ascii"))
    except ValueError:
        return None
    tag, data = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
    tags = (_tag_under(key, data) for key in tenant.known_namespace_keys)
    if not any(hmac.compare_digest(tag, one) for one in tags):
        return None
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError):  # of a version that sealed something else
        return None


def encrypt_thought(tenant: Tenant, text: str) -> str:
    """What a model thought, by AES-256-GCM under a key of the tenant's, as one URL-safe string."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    sealed = _thought_cipher(tenant.namespace_key).encrypt(nonce, text.encode(), None)
    return urlsafe_b64encode(nonce + sealed).decode()


def decrypt_thought(tenant: Tenant, sealed: str) -> str | None:
    """What a model thought, or `None` where this service did not encrypt it for this tenant."""
    try:
        raw = urlsafe_b64decode(sealed.encode("ascii"))
    except ValueError:
        return None
    for key in tenant.known_namespace_keys:
        with contextlib.suppress(ValueError, InvalidTag):
            nonce, content = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
            return _thought_cipher(key).decrypt(nonce, content, None).decode()
    return None


def _thought_cipher(namespace_key: bytes) -> AESGCM:
    return AESGCM(derive_key(namespace_key, "reasoning"))


def _tag_under(namespace_key: bytes, data: bytes) -> bytes:
    key = derive_key(namespace_key, "compaction")
    return blake2b(data, key=key, digest_size=_TAG_BYTES).digest()
