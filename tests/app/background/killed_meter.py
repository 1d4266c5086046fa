"""Processes that count usage and are killed within, for `test_left_usage`.

Each line of standard input is a JSON `Life`; a process is forked for it, and its status told. One
that has come to its end says behind how many lines.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import msgspec

from app.background.booking import LeftUsage
from app.limits.booking import Bill, Booking, Used
from tenants.limits.budgets import Budgets
from tenants.limits.limiter import Limiter
from tenants.records import Tenant, TenantLimits
from tenants.storage.connection import open_redis
from tenants.usage import journal
from tenants.usage.journal import FileJournal
from tenants.usage.meter import UsageMeter
from tenants.usage.prices import PriceList, Prices

PRICES = Prices(currency="EUR", input=1, cached=1, written=1, output=1000)
ADAPTER = "@guild/support"
PROMPT_TOKENS = 5
OUTPUT_TOKENS = 3
MOST = PROMPT_TOKENS + OUTPUT_TOKENS * 1000
_WATCHED = (
    *(f"tenants/usage/{name}.py" for name in ("journal", "ledger", "meter", "usage")),
    "tenants/limits/budgets.py",
    "booking.py",
)


class Life(msgspec.Struct):
    """What a process does, and behind how many lines of the code that counts it is killed."""

    url: str
    folder: str
    created_at: float
    does: Literal["serve", "recover"]
    lines: int
    log_bytes: int


def main() -> None:
    """Fork a process for each life."""
    for line in sys.stdin:
        life = msgspec.json.decode(line, type=Life)
        if not os.fork():
            sys.settrace(_killing(life.lines))
            asyncio.run(_serve(life) if life.does == "serve" else _recover(life))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)


def _killing(lines: int) -> Any:
    left = lines

    def in_line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return in_line

    def in_call(frame: FrameType, *_: object) -> Any:
        return in_line if any(one in frame.f_code.co_filename for one in _WATCHED) else None

    return in_call


async def _serve(life: Life) -> None:
    """Two requests from their reservations to the usage in the store, and half of a third."""
    journal._LOG_BYTES = life.log_bytes  # type: ignore[misc]
    redis = await open_redis(life.url, 30.0)
    meter = UsageMeter(redis, FileJournal(Path(life.folder) / "usage"))
    budgets, booking = Budgets(redis, Limiter(redis)), Booking(meter, PriceList(model=PRICES))
    tenant = Tenant(
        id="acme",
        name="acme",
        namespace_secret=b"",
        created_at=life.created_at,
        limits=TenantLimits(hard_budget_micros=1000),
    )
    given = os.open(f"{life.folder}/given", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(3):
        hold = budgets.hold(tenant, f"{os.getpid()}-{number}", MOST)
        assert hold is not None
        bill = Bill(
            tenant_id="acme",
            generation=tenant.generation,
            prices=PRICES,
            reservation=hold.name,
            prompt_tokens=PROMPT_TOKENS,
            adapter=ADAPTER,
        )
        slot = booking.begin(bill)
        await budgets.reserve(tenant, [hold], PRICES)
        for token in range(OUTPUT_TOKENS):
            slot.note_output(token + 1)
            os.write(given, b".")  # a client has it
        if number < 2:
            used = Used(prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
            booking.request(bill, used, slot)
        await meter.flush()
    meter.close()
    await redis.close()


async def _recover(life: Life) -> None:
    """What each start does."""
    redis = await open_redis(life.url, 30.0)
    meter = UsageMeter(redis, FileJournal(Path(life.folder) / "usage"))
    await LeftUsage(meter).book()
    meter.close()
    await redis.close()


if __name__ == "__main__":
    main()
