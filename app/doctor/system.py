"""What surrounds the service: its environment's variables, files that it would read, the clock."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from difflib import get_close_matches

from app.assembly.check import Check
from app.settings import ENV_PREFIX, Settings, env_name

_OTHER_VARIABLES = {
    f"{ENV_PREFIX}{name}" for name in ("API_KEY", "URL", "ADMIN_URL", "ADMIN_TOKEN")
}
_OTHER_VARIABLES |= {f"{ENV_PREFIX}AUDIT_KEYS"}
"""Of commands other than `serve`."""
_MOST_AHEAD_SECONDS = 60.0


def check_environment(variables: Mapping[str, str] = os.environ) -> Check:
    """Whether each variable that looks like a setting is one."""
    known = {env_name(field) for field in Settings.model_fields}
    strange = sorted(
        name
        for name in variables
        if name.startswith(ENV_PREFIX) and name not in known | _OTHER_VARIABLES
    )
    if not strange:
        number = sum(name in known for name in variables)
        return Check("environment", "ok", f"{number} settings come from it")
    near = get_close_matches(strange[0], known, 1)
    return Check(
        "environment",
        "warn",
        f"{', '.join(strange)}: there is no such setting, and nobody reads it",
        f"was {near[0]} meant?" if near else "see docs/settings.md",
    )


def check_clock(settings: Settings) -> Check:
    """Whether the clock went back behind what was written here before."""
    newest = 0.0
    if settings.data_dir.is_dir() and os.access(settings.data_dir, os.R_OK | os.X_OK):
        written = [entry.stat(follow_symlinks=False) for entry in os.scandir(settings.data_dir)]
        newest = max((status.st_mtime for status in written), default=0.0)
    ahead = newest - time.time()
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if ahead > _MOST_AHEAD_SECONDS:
        return Check(
            "clock",
            "warn",
            f"{now}, and files in {settings.data_dir} are {ahead:.0f} s younger: it was set back; "
            "limits and lifetimes wait until then",
            "have it set by NTP",
        )
    return Check("clock", "ok", now)
