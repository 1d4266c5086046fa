"""Chromium, where one is installed, and what is counted and traced in its pages."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.registry import BenchError

if TYPE_CHECKING:
    from playwright.async_api import Browser, CDPSession, Page

FLAGS: Final = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_FRAMES_A_SECOND: Final = 60
_TASK: Final = "RunTask"
_MAIN_THREAD: Final = "CrRendererMain"
# Counts pictures for so long; a picture that is not drawn in time is one less.
_COUNT_FRAMES: Final = """() => {
  window.counted = { frames: 0, begun: performance.now() };
  const count = () => { window.counted.frames++; requestAnimationFrame(count); };
  requestAnimationFrame(count);
}"""
_COUNTED: Final = """() => {
  const { frames, begun } = window.counted;
  return [frames, (performance.now() - begun) / 1000];
}"""


def browser_path() -> str:
    """Where Chromium is. Raises `BenchError`."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise BenchError("chromium is not installed")
    return found


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A headless one. Raises `BenchError`."""
    path = browser_path()
    try:
        from playwright.async_api import async_playwright
    except ModuleNotFoundError as error:
        raise BenchError("playwright is not installed") from error
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield started
        finally:
            await started.close()


class Task(NamedTuple):
    """What a page did before it could do anything else."""

    milliseconds: float
    """By the clock: also those in which another process had the processor."""
    computed: float
    """The milliseconds in which it had the processor itself."""


@dataclass
class Traffic:
    """What a page has asked for since it was last cleared, and what of it went over the wire."""

    num_answers: int = 0
    num_bytes: int = 0
    _cached: set[str] = field(default_factory=set)

    def clear(self) -> None:
        """Count from here on."""
        self.num_answers = self.num_bytes = 0

    @staticmethod
    async def of(session: CDPSession) -> Traffic:
        """Of the page of a session, from now on."""
        traffic = Traffic()
        session.on("Network.requestServedFromCache", traffic._note_cached)
        session.on("Network.loadingFinished", traffic._note)
        await session.send("Network.enable")
        return traffic

    def _note_cached(self, event: dict[str, Any]) -> None:
        self._cached.add(event["requestId"])

    def _note(self, event: dict[str, Any]) -> None:
        # From the disk's cache nothing comes over the wire, not even headers.
        if event["requestId"] in self._cached or event["encodedDataLength"] == 0:
            return
        self.num_answers += 1
        self.num_bytes += int(event["encodedDataLength"])


async def count_frames(page: Page) -> None:
    """Count the pictures that the page draws, from now on."""
    await page.evaluate(_COUNT_FRAMES)


async def dropped_percent(page: Page) -> float:
    """Of the pictures since `count_frames`, at sixty a second, those that were not drawn."""
    counted: list[float] = await page.evaluate(_COUNTED)
    frames, seconds = counted
    return max(0.0, 100 * (1 - frames / (seconds * _FRAMES_A_SECOND)))


async def heap_mib(session: CDPSession) -> float:
    """What the page's scripts hold, once what they do not is collected."""
    await session.send("HeapProfiler.collectGarbage")
    usage = await session.send("Runtime.getHeapUsage")
    return float(usage["usedSize"]) / 2**20


@asynccontextmanager
async def traced_tasks(started: Browser, page: Page) -> AsyncIterator[list[Task]]:
    """The tasks of the page's main thread, to be read behind it."""
    tasks: list[Task] = []
    categories = ["toplevel", "disabled-by-default-devtools.timeline", "__metadata"]
    await started.start_tracing(page=page, categories=categories)
    yield tasks
    events = json.loads(await started.stop_tracing())["traceEvents"]
    threads = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == _MAIN_THREAD
    }
    tasks += [
        Task(one["dur"] / 1000, one.get("tdur", one["dur"]) / 1000)
        for one in events
        if one["name"] == _TASK and (one["pid"], one["tid"]) in threads and "dur" in one
    ]
