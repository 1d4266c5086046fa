"""The prompt cache on the wire: what of a prompt is kept for how long, and why it was found or not.

OpenAI's types have no word for what lies with the cache itself, and not with the request: then the
type is "unavailable", and `details`, an extension, has the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.wire.common import Identifier, Wire
from app.wire.functions import PLACE, Message
from engine.api import Loss

Ttl = Literal["30m", "12h"]
Retention = Literal["in_memory", "24h"]
CacheMode = Literal["implicit", "explicit"]
DEFAULT_TTL: Ttl = "30m"
MOST_WRITTEN: Final = 4
"""Breakpoints that a request writes: the latest ones. An implicit one is one of these."""


class CacheBreakpoint(Wire):
    """The end of a prefix that later prompts will begin with; it need not be a block's end."""

    mode: Literal["explicit"]
    ttl: Ttl | None = None


class MarkedPart(Wire):
    """A part of a message, which may end with a breakpoint."""

    prompt_cache_breakpoint: CacheBreakpoint | None = None


class CacheOptions(Wire):
    """How a prompt is kept; `explicit` keeps what lies before breakpoints, and nothing else."""

    mode: CacheMode | None = None
    ttl: Ttl | None = None


class ResponseCacheOptions(CacheOptions):
    """The same in the Responses API; `prewarm` computes the prompt, and no answer.

    The response `comparison_response_id` is what its diagnostics compare with.
    """

    prewarm: bool | None = None
    comparison_response_id: Identifier | None = None


def marked_parts(content: object) -> list[CacheBreakpoint]:
    """The breakpoints in a message's content, in order."""
    parts = content if isinstance(content, list) else ()
    marked = (one.prompt_cache_breakpoint for one in parts if isinstance(one, MarkedPart))
    return [mark for mark in marked if mark is not None]


def with_breakpoints(message: Message, content: str | Sequence[Wire] | None) -> Message:
    """A message that says how many characters of its `content` lie before each of its breakpoints,
    if it has any.
    """
    characters, found = 0, list[int]()
    for part in () if content is None or isinstance(content, str) else content:
        characters += len(getattr(part, "text", PLACE))
        if isinstance(part, MarkedPart) and part.prompt_cache_breakpoint is not None:
            found.append(characters)
    return {**message, "breakpoints": found} if found else message


MissReason = Literal[
    "model_changed",
    "prompt_cache_key_changed",
    "tools_changed",
    "text_format_changed",
    "reasoning_effort_changed",
    "verbosity_changed",
    "context_compacted",
    "input_changed",
    "service_tier_changed",
]
"""What OpenAI calls the differences between two requests."""
OwnReason = Literal[
    "evicted",
    "no_state",
    "end_user_changed",
    "namespace_changed",
    "prefix_shorter_than_block",
    "not_kept",
    "not_asked",
    "lost_long_ago",
    "never_seen",
    "unknown",
]


class CacheDetails(msgspec.Struct, kw_only=True):
    """What nobody else tells: all that differs from the request compared with, and why less was
    found than both have in common. Evicted blocks were so at a Unix time, by whatever it was; of
    some tokens keys may be there, and no state.
    """

    changed: list[MissReason] = []
    reason: OwnReason | UnsetType = UNSET
    evicted_at: int | UnsetType = UNSET
    evicted_by: Loss | UnsetType = UNSET
    keys_tokens: int | UnsetType = UNSET


class CacheHit(msgspec.Struct, kw_only=True, tag_field="type", tag="cache_hit"):
    """All that both have in common was found, and they do not part within what was asked before."""

    details: CacheDetails


class CacheMiss(msgspec.Struct, kw_only=True, tag_field="type", tag="cache_miss"):
    """The prompts differ: so many of its tokens come behind that, and so many before."""

    cache_missed_tokens: int
    reason: MissReason
    comparison_reusable_tokens: int | UnsetType = UNSET
    details: CacheDetails


class ComparisonNotFound(
    msgspec.Struct, kw_only=True, tag_field="type", tag="comparison_response_not_found"
):
    """The tenant has no such response."""


class DiagnosticsUnavailable(msgspec.Struct, kw_only=True, tag_field="type", tag="unavailable"):
    """What both say does not explain it."""

    details: CacheDetails | UnsetType = UNSET


CacheDiagnostics = CacheHit | CacheMiss | ComparisonNotFound | DiagnosticsUnavailable
