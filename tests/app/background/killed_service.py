"""Services that are killed under load, for `test_killed_services`.

Each line of standard input is a store's URL and a data folder; a service over a scripted engine is
forked for it, which prints its URL once it serves.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from app.assembly.service import create_app
from app.stores import Stores
from app.transport.bounds import Bounds
from tenants.storage.connection import open_redis
from tenants.usage.journal import FileJournal
from tenants.usage.prices import PriceList, Prices
from tests.app.conftest import MODEL, PEPPER, byte_tokenizer, serving
from tests.app.scripted_engine import ScriptedEngine

PRICES = Prices(currency="EUR", input=1, cached=1, written=1, output=1000)
STEP_SECONDS = 0.002


async def _serve(url: str, folder: str) -> None:
    engine = ScriptedEngine(byte_tokenizer())
    engine.token_seconds = STEP_SECONDS
    engine.answer = "and on " * 100
    redis = await open_redis(url, 30.0)
    stores = Stores.over(redis, PEPPER, journal=FileJournal(Path(folder)))
    bounds = Bounds(max_queued_requests=64)
    prices = PriceList(model=PRICES)
    app = create_app(engine, stores, engine.tokenizer, MODEL, bounds, prices=prices)
    async with serving(app) as (base_url,):
        print(base_url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Fork a service for each line."""
    for line in sys.stdin:
        if not os.fork():
            print(os.getpid(), flush=True)
            asyncio.run(_serve(*line.split()))
        os.wait()
        print("over", flush=True)


if __name__ == "__main__":
    main()
