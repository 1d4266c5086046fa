"""What a process holds of texts, keys and secrets stays with it: no file and no child has it."""

from __future__ import annotations

import ctypes
import re
import resource
from collections.abc import Mapping
from typing import Final

_PR_SET_DUMPABLE = 4
_SECRET_NAME: Final = re.compile(
    r"(^|_)(AUTH|COOKIE|CREDENTIALS?|HEADERS|KEYS?|PASSPHRASE|PASSWD|PAT|PEPPER|SECRETS?|TOKEN)(_|$)"
    r"|APIKEY|PASSWORD|SECRETKEY"
)
_URL_WITH_PASSWORD: Final = re.compile(r"://[^/?#\s]*@")
_PATHS: Final = ("RAY_TLS_", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
"""Of these names are files and modes, whatever words they have."""


def forbid_core_dumps() -> None:
    """Have this process leave no memory behind when it crashes, and show none to a debugger of its
    user; nor have the programs that it starts write core files.

    A limit alone would not do: a core that is piped to a program (systemd-coredump) has none.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


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
