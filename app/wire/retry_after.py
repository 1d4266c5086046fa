"""`Retry-After`: when whoever is refused may try again, in headers that clients heed."""

from __future__ import annotations

import math
from typing import Final

SOON_SECONDS: Final = 1
"""What keeps a request from being served has passed by then, mostly."""


def retry_after(seconds: float = SOON_SECONDS) -> dict[str, str]:
    """In whole seconds, as HTTP has it (RFC 9110, section 10.2.3)."""
    return {"retry-after": str(math.ceil(seconds))}


def retry_headers(seconds: float | None) -> dict[str, str]:
    """The same with the milliseconds that OpenAI's clients read; `None`: waiting is in vain."""
    if seconds is None:
        return {"x-should-retry": "false"}
    milliseconds = max(1, math.ceil(seconds * 1000))
    return retry_after(milliseconds / 1000) | {"retry-after-ms": str(milliseconds)}


def duration(seconds: float) -> str:
    """A time as limits' headers carry it: `20ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
