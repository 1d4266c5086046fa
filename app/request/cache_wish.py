"""What a request asks of the prompt cache, and what of it the engine is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.wire.prompt_cache import (
    DEFAULT_TTL,
    MOST_WRITTEN,
    CacheBreakpoint,
    CacheOptions,
    Retention,
    Ttl,
)
from engine.api import NOTHING_CACHED, CachePolicy
from tenants.records import Tenant

_SECONDS: Final[dict[Ttl, float]] = {"30m": 1800.0, "12h": 43_200.0}
_RETAINED_SECONDS: Final[dict[Retention, float]] = {"in_memory": 0.0, "24h": 86_400.0}


@dataclass(frozen=True, kw_only=True)
class CacheWish:
    """What a request asks of the prompt cache.

    One that is `explicit` has nothing kept, and finds nothing, behind the last breakpoint of its
    conversation. `lease_seconds` is for how long at least it wants kept what it uses; `None` where
    it says nothing of it. It wants to know why it was found, or not, beside the response
    `compare_with`.
    """

    explicit: bool = False
    lease_seconds: float | None = None
    compare_with: str | None = None


def cache_wish(
    options: CacheOptions | None, retention: Retention | None, marks: Sequence[CacheBreakpoint]
) -> CacheWish:
    """What the fields of a request ask for; `marks` are its breakpoints, in order.

    Of several lifetimes the longest counts: each is the least that one of them is kept for.
    """
    explicit = options is not None and options.mode == "explicit"
    default = (options and options.ttl) or DEFAULT_TTL
    written = marks[-MOST_WRITTEN:] if explicit else marks[1 - MOST_WRITTEN :]
    asked = [_SECONDS[mark.ttl or default] for mark in written]
    if options is not None:
        asked.append(_SECONDS[default])
    if retention is not None:
        asked.append(_RETAINED_SECONDS[retention])
    return CacheWish(explicit=explicit, lease_seconds=max(asked, default=None))


def cache_policy(
    wish: CacheWish,
    breakpoints: Sequence[int],
    said_tokens: int | None,
    tenant: Tenant,
    default_lease_seconds: float,
) -> CachePolicy:
    """What the engine reads and writes, and for how long that is leased, of a prompt whose last
    breakpoints lie behind so many tokens, and what is said in it, the implicit one, behind
    `said_tokens`.
    """
    if tenant.cache == "off" or (wish.explicit and not breakpoints):
        return NOTHING_CACHED
    implicit = [] if wish.explicit or said_tokens is None else [said_tokens]
    return CachePolicy(
        lease_s=lease_seconds(wish, tenant, default_lease_seconds),
        up_to=breakpoints[-1] if wish.explicit else None,
        ends=tuple([*breakpoints, *implicit][-MOST_WRITTEN:]),
    )


def lease_seconds(wish: CacheWish, tenant: Tenant, default: float) -> float:
    """For how long what a request uses is leased, within what the tenant may have."""
    asked = default if wish.lease_seconds is None else wish.lease_seconds
    most = tenant.limits.lease_seconds
    return asked if most is None else min(asked, float(most))
