"""What metrics and usage cost the event loop: at 10,000 deltas a second, and at a scrape.

Tenants' deltas are observed as a generation does, and answers counted, one for every 64 deltas; a
scrape shows all tenants that have series of their own, and the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from typing import TYPE_CHECKING, Final, cast

from app.limits.booking import Bill, Booking, Used
from app.observe.metrics import Metrics
from bench.registry import Result
from engine.api import EngineStats
from tenants.usage.journal import FileJournal
from tenants.usage.meter import UsageMeter
from tenants.usage.prices import Prices

if TYPE_CHECKING:
    from tenants.storage.connection import GuardedRedis

FIGURES: Final = {
    "metrics_core_percent": "of a core at 10,000 deltas a second, without scrapes, median, %",
    "scrape_ms": "processor time of the event loop's thread for a scrape, median, ms",
    "scrape_kib": "what a scrape sends, KiB",
    "usage_us_per_delta": "to note in the usage journal what a delta has, median, µs",
    "usage_us_per_request": "to begin a request's account there, and to book it, median, µs",
}
_DELTAS_PER_S: Final = 10_000
_DELTAS_OF_ANSWER: Final = 64
_STATS: Final = EngineStats(
    running=1,
    waiting=0,
    blocks_total=100,
    blocks_in_use=1,
    blocks_cached=1,
    peak_blocks_in_use=1,
    steps=1,
    prompt_tokens=1,
    cached_tokens=1,
    output_tokens=1,
    preemptions=0,
    forks=0,
    copied_blocks=0,
    invariant_violations=0,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--tenants", type=int, default=1000, help="that ask in turn")
    parser.add_argument("--most-tenants", type=int, default=20, help="with series of their own")
    parser.add_argument("--rounds", type=int, default=9)


def run(options: argparse.Namespace) -> Result:
    """Observe a second's deltas, then scrape, and again."""
    return asyncio.run(_measure(options))


async def _measure(options: argparse.Namespace) -> Result:
    draw, metrics = random.Random(0), Metrics(options.most_tenants)
    metrics.engine.observe(_STATS)
    observing, scraping, size = [], [], 0
    for _ in range(options.rounds):
        gaps = [draw.expovariate(50.0) for _ in range(_DELTAS_PER_S)]
        tenants = [f"tenant-{draw.randrange(options.tenants)}" for _ in gaps]
        began = thread_time()
        _observe(metrics, gaps, tenants)
        observing.append(thread_time() - began)
        began = thread_time()
        text, _ = metrics.render("")
        scraping.append(thread_time() - began)
        size = len(text)
    figures = {
        "metrics_core_percent": 100 * statistics.median(observing),
        "scrape_ms": 1000 * statistics.median(scraping),
        "scrape_kib": size / 1024,
    }
    return Result(figures | await _usage(options.rounds))


async def _usage(rounds: int) -> dict[str, float]:
    """What it costs that a kill loses no usage: answers of 64 deltas, in a journal on the disk."""
    noting, booking = [], []
    with TemporaryDirectory() as folder:
        meter = UsageMeter(cast("GuardedRedis", None), FileJournal(Path(folder)))  # never handed in
        books = Booking(meter)
        prices = Prices(currency="EUR", input=1, cached=1, written=1, output=1)
        bill = Bill(tenant_id="acme", generation="1", prices=prices, prompt_tokens=500)
        used = Used(prompt_tokens=500, cached_tokens=400, output_tokens=_DELTAS_OF_ANSWER)
        requests = range(_DELTAS_PER_S // _DELTAS_OF_ANSWER)
        for _ in range(rounds):
            began = thread_time()
            slots = [books.begin(bill) for _ in requests]
            begun = thread_time()
            for slot in slots:
                for delta in range(_DELTAS_OF_ANSWER):
                    slot.note_output(delta)
            noted = thread_time()
            for slot in slots:
                books.request(bill, used, slot)
            booked = thread_time()
            noting.append((noted - begun) / len(slots) / _DELTAS_OF_ANSWER)
            booking.append((begun - began + booked - noted) / len(slots))
        meter.close()
    return {
        "usage_us_per_delta": 1e6 * statistics.median(noting),
        "usage_us_per_request": 1e6 * statistics.median(booking),
    }


def _observe(metrics: Metrics, gaps: list[float], tenants: list[str]) -> None:
    for start in range(0, len(gaps), _DELTAS_OF_ANSWER):
        tenant = tenants[start]
        series = metrics.traffic.tenants.did(tenant, 0)
        series.time_to_first_token.observe(gaps[start])
        series.queue_time.observe(gaps[start])
        for gap in gaps[start : start + _DELTAS_OF_ANSWER]:
            series.inter_token_latency.observe(gap, 1)
        metrics.traffic.count_answer(tenant, 500, 400, _DELTAS_OF_ANSWER, "stop")
