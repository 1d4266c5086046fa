"""What the console costs a browser: bytes to load, tasks as answers stream, a wall for minutes.

A headless Chromium signs in to the chat of a service whose engine has no model: bytes and answers
of the first load and of a reload, and the time until one can type on a processor four times slower.
Then an answer of `--answer-kib` of Markdown streams, a token every `--pace` milliseconds, while the
tasks of the page's main thread are traced. Last it watches a wall of `--cells` for `--minutes`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING, Final

import httpx

from bench.common.browser import (
    Traffic,
    browser,
    browser_path,
    count_frames,
    dropped_percent,
    heap_mib,
    traced_tasks,
)
from bench.common.options import add_model
from bench.common.service import Service
from bench.console.watched import watched_pool
from bench.registry import Result
from bench.service.null_engine import null_service

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FIGURES: Final = {
    "first_load_kib": "KiB on the wire until one can type in the chat, for the first time",
    "first_load_answers": "answers that they came in",
    "second_load_kib": "KiB on the wire of a reload",
    "second_load_answers": "answers that they came in",
    "first_paint_ms": "milliseconds to the first paint, on a processor four times slower",
    "can_type_ms": "milliseconds until one can type in the chat, on that processor",
    "longest_task_ms": "the longest task of the page's main thread while a long answer streams, ms",
    "longest_task_cpu_ms": "the longest by the milliseconds of the processor that it took",
    "late_tasks": "tasks of more than 50 ms meanwhile",
    "dropped_frames_percent": "pictures of sixty a second that were not drawn meanwhile, percent",
    "opening_task_ms": "the longest task while that answer is opened anew, ms",
    "wall_longest_task_ms": "the longest task while the wall is watched for ten seconds, ms",
    "wall_dropped_frames_percent": "pictures that were not drawn while it is watched, percent",
    "wall_heap_before_mib": "MiB that the page's scripts hold once the wall is shown",
    "wall_heap_after_mib": "MiB that they hold at the end",
}
_SLOWDOWN: Final = 4
_LATE_MS: Final = 50
_SETTLE_SECONDS: Final = 2.0
_TRACED_SECONDS: Final = 10.0
_PAINT: Final = """() => performance.getEntriesByName("first-contentful-paint")[0].startTime"""
_CAN_TYPE: Final = """() => {
  const field = document.querySelector("#question");
  return field !== null && !field.disabled && performance.now();
}"""
_PART: Final = """## Part {number}: what a prefix is worth

Requests that begin alike share **blocks** of the cache; `block {number}` holds 16 tokens, and what
parts from it is computed [anew](https://example.org/{number}). One says so in *words*:

- a prompt that is registered, pinned and found by all of its tenant;
- a conversation, which goes on behind its last turn;
  - or a fork of it, which shares what lies before.

```python
def hash_of(parent: bytes, tokens: list[int]) -> bytes:
    \"\"\"Block {number} of a chain.\"\"\"
    return blake2b(parent + bytes(tokens), digest_size=16).digest()
```

| tenant | asked | found |
|:---|---:|---:|
| acme | {number},000 | {number},{number}00 |
| umbra | 2,{number}00 | 1,{number}00 |

"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long the answer is, and how large the wall."""
    parser.add_argument("--answer-kib", type=int, default=55)
    parser.add_argument("--pace", type=float, default=2.5, help="milliseconds a token")
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--changes", type=int, default=2_000, help="blocks taken a second")
    parser.add_argument("--minutes", type=float, default=10.0, help="for which the wall is watched")
    add_model(parser)


def run(options: argparse.Namespace) -> Result:
    """Measure. Raises `BenchError` where there is no browser."""
    browser_path()
    answer = long_answer(options.answer_kib * 1024)
    with null_service(["--model", options.model], answer=answer) as (service, _):
        key = service.create_tenant("bench")
        _set_pace(service, key, options.pace)
        chat = asyncio.run(_chat(service, key))
    return Result(chat | asyncio.run(_wall(options)))


def long_answer(num_bytes: int) -> str:
    """Markdown of all kinds."""
    parts = [_PART.format(number=number) for number in range(1, num_bytes // len(_PART) + 2)]
    return "".join(parts)[:num_bytes]


def _set_pace(service: Service, key: str, pace: float) -> None:
    """A null engine's steps take as long as the seed of the newest request says."""
    body = {"model": "any", "input": "pace", "max_output_tokens": 1, "metadata": {}}
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=service.url, headers=headers, trust_env=False) as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        asked = body | {"model": model, "seed": int(1000 * pace)}
        client.post("/v1/responses", json=asked, timeout=60).raise_for_status()


async def _chat(service: Service, key: str) -> dict[str, float]:
    async with browser() as started:
        figures = await _loads(started, service.url, key)
        return figures | await _streamed(started, service.url, key)


async def _page_of(started: Browser, token: str) -> Page:
    """A page that is signed in as soon as it is opened, with an empty cache."""
    context = await started.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    kept = f"sessionStorage.setItem('partywall.token', {json.dumps(token)})"
    await page.add_init_script(kept)
    return page


async def _loads(started: Browser, url: str, key: str) -> dict[str, float]:
    page = await _page_of(started, key)
    session = await page.context.new_cdp_session(page)
    traffic = await Traffic.of(session)
    figures: dict[str, float] = {}
    for load in ("first", "second"):
        traffic.clear()
        await (page.goto(f"{url}/console/#chat") if load == "first" else page.reload())
        await page.wait_for_function(_CAN_TYPE)
        await asyncio.sleep(_SETTLE_SECONDS)
        figures[f"{load}_load_kib"] = traffic.num_bytes / 1024
        figures[f"{load}_load_answers"] = traffic.num_answers
    await page.context.close()
    slow = await _page_of(started, key)
    session = await slow.context.new_cdp_session(slow)
    await session.send("Emulation.setCPUThrottlingRate", {"rate": _SLOWDOWN})
    await slow.goto(f"{url}/console/#chat")
    typed = await slow.wait_for_function(_CAN_TYPE)
    figures["can_type_ms"] = float(await typed.json_value())
    figures["first_paint_ms"] = float(await slow.evaluate(_PAINT))
    await slow.context.close()
    return figures


async def _streamed(started: Browser, url: str, key: str) -> dict[str, float]:
    page = await _page_of(started, key)
    await page.goto(f"{url}/console/#chat")
    await page.wait_for_function(_CAN_TYPE)
    await page.locator("#question").fill("What is a prefix worth?")
    async with traced_tasks(started, page) as tasks:
        await count_frames(page)
        await page.keyboard.press("Enter")
        await page.locator(".answer[aria-busy=false] .figures").wait_for(timeout=600_000)
        dropped = await dropped_percent(page)
    address = page.url
    await page.goto("about:blank")  # so that the end of the page before is none of its tasks
    async with traced_tasks(started, page) as opening:
        await page.goto(address)
        await page.wait_for_function(_CAN_TYPE)
        await asyncio.sleep(_SETTLE_SECONDS)
    return {
        "longest_task_ms": max(one.milliseconds for one in tasks),
        "longest_task_cpu_ms": max(one.computed for one in tasks),
        "late_tasks": float(sum(one.milliseconds > _LATE_MS for one in tasks)),
        "dropped_frames_percent": dropped,
        "opening_task_ms": max(one.milliseconds for one in opening),
    }


async def _wall(options: argparse.Namespace) -> dict[str, float]:
    async with watched_pool(options.cells, options.changes) as url, browser() as started:
        page = await _page_of(started, "pwadmin_bench")
        session = await page.context.new_cdp_session(page)
        await page.goto(f"{url}/console/#wall")
        await page.locator(".legend").get_by_text("cached").wait_for()
        await asyncio.sleep(_SETTLE_SECONDS)
        async with traced_tasks(started, page) as tasks:
            await asyncio.sleep(_TRACED_SECONDS)
        before = await heap_mib(session)
        await count_frames(page)
        await asyncio.sleep(60 * options.minutes)
        dropped = await dropped_percent(page)
        return {
            "wall_longest_task_ms": max(one.milliseconds for one in tasks),
            "wall_dropped_frames_percent": dropped,
            "wall_heap_before_mib": before,
            "wall_heap_after_mib": await heap_mib(session),
        }
