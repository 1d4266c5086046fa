"""What a client says of the prompt cache: up to where a prompt is kept, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from app.wire.common import Identifier, Wire

Ttl = Literal["30m", "12h"]
Retention = Literal["in_memory", "24h"]
CacheMode = Literal["implicit", "explicit"]
DEFAULT_TTL: Ttl = "30m"


class CacheBreakpoint(Wire):
    """The end of a prefix that later prompts will begin with; it need not be a block's end."""

    mode: Literal["explicit"]
    ttl: Ttl | None = None


class MarkedText(Wire):
    """A part of a message, whose text may end with a breakpoint."""

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
    marked = (one.prompt_cache_breakpoint for one in parts if isinstance(one, MarkedText))
    return [mark for mark in marked if mark is not None]


def marked_characters(content: str | Sequence[Wire] | None) -> int | None:
    """How many characters of a content lie before its last breakpoint; `None` where it has none."""
    if content is None or isinstance(content, str):
        return None
    characters, found = 0, None
    for part in content:
        characters += len(getattr(part, "text", ""))
        if isinstance(part, MarkedText) and part.prompt_cache_breakpoint is not None:
            found = characters
    return found
