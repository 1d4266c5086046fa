"""What a child's environment has of its parent's: no secrets, which anybody may read there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_SECRET_NAME: Final = re.compile(
    r"(^|_)(AUTH|COOKIE|CREDENTIALS?|HEADERS|KEYS?|PASSPHRASE|PASSWD|PAT|PEPPER|SECRETS?|TOKEN)(_|$)"
    r"|APIKEY|PASSWORD|SECRETKEY"
)
_URL_WITH_PASSWORD: Final = re.compile(r"://[^/?#\s]*@")
_PATHS: Final = ("RAY_TLS_", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
"""Of these names are files and modes, whatever words they have."""


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """All but the service's own settings, and whatever is named like a secret or has a password."""
    return {name: value for name, value in environment.items() if not _is_secret(name, value)}


def _is_secret(name: str, value: str) -> bool:
    upper = name.upper()
    if upper.startswith(_PATHS):
        return False
    if upper.startswith("PARTYWALL_"):
        return upper != "PARTYWALL_CACHE_DIR"
    return bool(_SECRET_NAME.search(upper) or _URL_WITH_PASSWORD.search(value))
