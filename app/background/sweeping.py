"""What killed processes have left behind: their folders of sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

_PATTERN = "partywall-*"
_LOCK = "lock"
_SHORT = Path("/tmp")
"""Where they go if their sockets' paths would be too long."""
_SETTLED_SECONDS = 60.0
"""A folder that is younger may not have been locked yet."""


def sweep(*parents: Path) -> int:
    """Remove this user's folders there, or where they are made, that no process holds.

    Returns how many there were. `tenants.storage.embedded` and `engine.serve.supervisor` make them,
    and keep a lock in them as long as they live.
    """
    folders = parents or {Path(tempfile.gettempdir()), _SHORT}
    return sum(_remove_if_left(one) for folder in folders for one in folder.glob(_PATTERN))


def _remove_if_left(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # somebody else's, or somebody else was faster
        status = folder.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if is_ours and time.time() - status.st_mtime > _SETTLED_SECONDS:
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            return True
    return False
