"""What a prompt is made of, as digests that tell what two prompts differ in, and no text."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from engine.api import EngineInfo, EngineRequest
from engine.blocks.hashing import derive_key
from tenants.records import Tenant

_DIGEST_BYTES: Final = 8
Segment = Literal[
    "secret",
    "model",
    "key",
    "end_user",
    "private",
    "shared",
    "tools",
    "text_format",
    "effort",
    "effort_text",
    "verbosity",
    "context",
    "system",
    "service_tier",
]


class Segments(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a prompt for later ones to be compared with, beside its tokens.

    `digests` are keyed with the tenant's secret, as "secret" tells. The first `said_tokens` are
    what was said; an answer begins behind them. As far as the first `up_to` tokens could be found
    (`None`: all). "private" and "shared" are the namespaces, "effort_text" what the template
    makes of the effort before the first message, and "context" what was left out or summed up.
    """

    digests: dict[Segment, bytes]
    said_tokens: int
    up_to: int | None = None

    def same(self, other: Segments, *segments: Segment) -> bool:
        """Whether the two agree in all of `segments`."""
        return all(self.digests.get(one) == other.digests.get(one) for one in segments)


def segments_of(
    tenant: Tenant,
    asked: EngineRequest,
    info: EngineInfo,
    said_tokens: int,
    made_of: dict[Segment, Any],
) -> Segments:
    """Of a prompt that the engine is `asked` to compute, and is `made_of` this besides."""
    spaces = asked.namespaces
    values: dict[Segment, Any] = {
        "secret": None,
        "model": [info.model, info.hash_extras],
        "private": spaces.private_key,
        "shared": [spaces.shared_key, spaces.shared_tokens],
        "service_tier": asked.priority,
        **made_of,
    }
    return Segments(
        digests={one: digest(tenant, one, value) for one, value in values.items()},
        said_tokens=said_tokens,
        up_to=asked.cache.up_to,
    )


def digest(tenant: Tenant, segment: Segment, value: Any) -> bytes:
    """What tells one value of a segment from another, to nobody but the tenant."""
    data = msgspec.msgpack.encode((segment, value), order="sorted")
    key = derive_key(tenant.namespace_key, "segments")
    return blake2b(data, key=key, digest_size=_DIGEST_BYTES).digest()
