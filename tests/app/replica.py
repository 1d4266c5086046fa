"""One service process of several: `python -m tests.app.replica REDIS_URL`.

Its scripted engine holds every answer after `HOLD_AFTER` tokens. It prints its URL once it serves,
and stops when its standard input ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from app.assembly.service import create_app
from app.stores import Stores
from app.transport.bounds import Bounds
from tenants.storage.connection import open_redis
from tests.app.conftest import MODEL, PEPPER, byte_tokenizer, serving
from tests.app.scripted_engine import ScriptedEngine

HOLD_AFTER = 8
_TIMEOUT_SECONDS = 10.0


async def serve(redis_url: str) -> None:
    """Serve until standard input ends."""
    tokenizer = byte_tokenizer()
    engine = ScriptedEngine(tokenizer)
    engine.hold_after = HOLD_AFTER
    redis = await open_redis(redis_url, _TIMEOUT_SECONDS)
    app = create_app(engine, Stores.over(redis, PEPPER), tokenizer, MODEL, Bounds())
    async with serving(app) as (url,):
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await redis.close()


class Replica:
    """The process, as a test sees it; `url` waits for it."""

    def __init__(self, redis_url: str) -> None:
        command = [sys.executable, "-m", "tests.app.replica", redis_url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def url(self) -> str:
        """Where it serves, once it does."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Have it die."""
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        """End it, the hard way if it does not listen."""
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
