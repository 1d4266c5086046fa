"""A process that forbids core dumps has none, and none have the programs that it starts."""

from __future__ import annotations

import subprocess
import sys

REPORT = (
    "import ctypes, resource; "
    "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE))"
)


def report(before: str) -> list[str]:
    """PR_GET_DUMPABLE and the limits of cores, after what is done `before`."""
    command = [sys.executable, "-c", f"{before}; {REPORT}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def test_memory_is_neither_left_in_a_core_nor_shown_to_a_debugger() -> None:
    assert report("pass")[0] == "1"
    forbid = "from engine.system.secrecy import forbid_core_dumps; forbid_core_dumps()"
    assert report(forbid) == ["0", "0", "0"]


def test_programs_that_it_starts_write_no_core_files_either() -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {REPORT!r}])"
    forbid = "from engine.system.secrecy import forbid_core_dumps; forbid_core_dumps()"
    dumpable, *limits = report(f"{forbid}; {child}")[:3]
    assert (dumpable, limits) == ("1", ["0", "0"])
