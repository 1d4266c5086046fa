"""`partywall serve` whose events tell when they were made, for `bench sockets`.

`python -m bench.service.stamped serve ...`: every event of a response has one more field,
`made_at`, in seconds of the system's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import time

from app import cli
from app.responses import run as response_run
from app.responses.event_log import EventLog


class StampedLog(EventLog):
    """A stream's events, stamped."""

    def append(self, event: bytes) -> None:
        """See `EventLog.append`."""
        super().append(b'%s,"made_at":%.6f}' % (event.removesuffix(b"}"), time.monotonic()))


if __name__ == "__main__":
    response_run.EventLog = StampedLog  # type: ignore[attr-defined]
    cli.main()
