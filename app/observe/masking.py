"""Keys and tokens that stand where none belongs, such as a path, are in no line of the log."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(pw(?:admin)?_(?:[0-9a-f]{16}\.)?)[A-Za-z0-9_-]{24,}"  # an id may be told
    r"|(eyJ)[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"  # a JSON Web Token
)


def masked(text: str) -> str:
    """`text` with `***` for the secret part of what looks like an API key or a token."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", text)
