"""The command `partywall`: signals first, and then what takes a while to import."""

from __future__ import annotations

import sys

from app.signals import leave_on_signals


def main() -> None:
    """Entry point; errors of the user's making are one line and exit status 1 (or 2: usage)."""
    if sys.argv[1:2] == ["serve"]:
        leave_on_signals()
    from app.cli.options import CommandError
    from app.cli.program import app

    try:
        app()
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
