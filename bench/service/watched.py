"""`partywall serve` over the null engine, its event loop watched, for `bench stall`.

`python -m bench.service.watched serve ...`: a task on the loop asks to be woken every millisecond;
whenever it is late, when that was (seconds of the system's monotonic clock, which all processes of
a machine share) and how late (seconds) are appended to the file that `WATCH_LOG` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette

from bench.service import null_engine

WATCH_VARIABLE = "WATCH_LOG"
_PERIOD_SECONDS = 0.001
_NOTED_SECONDS = 0.002


async def _watch(path: str) -> None:
    with open(path, "a", buffering=1) as log:  # noqa: ASYNC230 - lines of a few bytes
        while True:
            asked = time.monotonic()
            await asyncio.sleep(_PERIOD_SECONDS)
            late = time.monotonic() - asked - _PERIOD_SECONDS
            if late > _NOTED_SECONDS:
                log.write(f"{asked:.6f} {late:.6f}\n")


def _watched(app: Starlette) -> Starlette:
    lifespan = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def watched(served: Starlette) -> AsyncIterator[Any]:
        watch = asyncio.create_task(_watch(os.environ[WATCH_VARIABLE]))
        try:
            async with lifespan(served) as state:
                yield state
        finally:
            watch.cancel()

    app.router.lifespan_context = watched
    return app


def main() -> None:
    """The service's command line, or the engine's process that it starts."""
    if not sys.argv[1].startswith("ipc:"):
        from app.assembly import service

        create_app = service.create_app
        service.create_app = lambda *given: _watched(create_app(*given))
    null_engine.main()


if __name__ == "__main__":
    main()
