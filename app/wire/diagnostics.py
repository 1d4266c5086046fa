"""What a response says of the prompt cache: whether it was of use, and if not, why not.

OpenAI's types have no word for what lies with the cache itself, and not with the request: then the
type is "unavailable", and `details`, an extension, has the reason.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from engine.api import Loss

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
    "end_user_changed",
    "namespace_changed",
    "prefix_shorter_than_block",
    "not_kept",
    "not_asked",
    "unknown",
]


class CacheDetails(msgspec.Struct, kw_only=True):
    """What nobody else tells: all that differs from the request compared with, and why less was
    found than both have in common. Evicted blocks were so at a Unix time, by whatever it was.
    """

    changed: list[MissReason] = []
    reason: OwnReason | UnsetType = UNSET
    evicted_at: int | UnsetType = UNSET
    evicted_by: Loss | UnsetType = UNSET


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
