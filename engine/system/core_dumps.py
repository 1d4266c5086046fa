"""What a process holds of texts, keys and secrets stays with it."""

from __future__ import annotations

import ctypes
import resource

_PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """Have this process leave no memory behind when it crashes, and show none to a debugger of its
    user; nor have the programs that it starts write core files.

    A limit alone would not do: a core that is piped to a program (systemd-coredump) has none.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
