"""The start of the service."""

from __future__ import annotations

import subprocess
import sys


def test_the_engine_can_be_started_before_the_service_s_own_modules_are_imported() -> None:
    """They take longer to import than everything else does; see `app.main.run_service`."""
    program = "import sys, app.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"app.service", "app.admin", "transformers", "torch"}.isdisjoint(done.stdout.split())
