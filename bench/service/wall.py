"""What it costs to watch the KV cache: the engine's time, bytes on the wire, a browser's frames.

A pool of `--blocks` has `--changes` blocks taken a second, and as many given back, in simulated
time, while somebody watches and while nobody does, in turns. Then the engine is asked through its
socket. The browser, a headless Chromium if there is one, draws `--cells`: in each of its pictures
change as many as one frame of the stream tells at most, twelve times what the stream sends.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import mimetypes
import random
import time
from collections import deque
from importlib.resources import files
from typing import Any, Final

from bench.common.browser import FLAGS, browser_path
from bench.common.engines import AnyToken, finish, request, scripted_core
from bench.common.figures import percentile
from bench.registry import BenchError, Result
from engine.api import EngineRequest
from engine.blocks.pool import BlockPool
from engine.blocks.wall import PARTIAL
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine

FIGURES: Final = {
    "wall_core_percent": "of a core, for one watcher of a pool under load: marks, frames and round "
    "trips to the engine; not what HTTP takes",
    "requests_core_percent": "of a core, for a watcher's question once a second which requests "
    "there are and where a block lies: 64 that run, and 1,024 conversations that have left blocks",
    "wall_kib_per_s": "KiB a second that such a watcher is sent",
    "wall_first_kib": "KiB of the first picture, of a pool that is full",
    "frame_ms_p95": "milliseconds that the page works on one picture, 95th percentile (Chromium)",
    "interval_ms_p95": "milliseconds between two pictures, 95th percentile (Chromium)",
}
_TICKS_A_SECOND: Final = 5
_GROWING: Final = 50
_BLOCKS_A_SEQUENCE: Final = 50
_LEAST_BLOCKS: Final = (2 * _GROWING + 1) * _BLOCKS_A_SEQUENCE
_ROUND_TRIPS: Final = 300
_PICTURES: Final = 300
_CONVERSATIONS: Final = 1024
_TURNS: Final = 64
_PROMPT_TOKENS: Final = 1000
_QUESTIONS: Final = 200
_PAGE: Final = "http://wall.invalid/"
_DRAW: Final = """async ([frames, first]) => {
  const {Cells} = await import("./wall/frames.js");
  const {Picture} = await import("./wall/picture.js");
  const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const canvas = document.body.appendChild(document.createElement("canvas"));
  const cells = new Cells(), picture = new Picture(canvas, cells);
  const take = (frame) => cells.take(frame, 0, (...run) => picture.paint(...run));
  first.map(bytes).forEach((frame, index) => {
    take(frame);
    if (index === 0) picture.layOut(1400);
  });
  picture.flush();
  const told = frames.map(bytes), work = [], intervals = [];
  let before = null;
  for (const frame of told) {
    const now = await new Promise(requestAnimationFrame);
    if (before !== null) intervals.push(now - before);
    before = now;
    const start = performance.now();
    take(frame);
    picture.flush();
    work.push(performance.now() - start);
  }
  return [work, intervals];
}"""


class PoolLoad:
    """Sequences that grow side by side, hold their blocks for a while, and leave them cached."""

    def __init__(self, pool: BlockPool, seed: int) -> None:
        self._pool = pool
        self._draw = random.Random(seed)
        self._growing: list[tuple[str, list[int]]] = [("", []) for _ in range(_GROWING)]
        self._held: deque[list[int]] = deque()
        self._number = 0

    def grow(self, count: int) -> None:
        """Take so many blocks, each for any sequence; neighbours are seldom of one."""
        for _ in range(count):
            place = self._draw.randrange(_GROWING)
            tenant, blocks = self._growing[place]
            if not blocks:
                tenant = f"tenant {self._draw.randrange(64)}"
            (block,) = self._pool.allocate(1, tenant)
            self._number += 1
            self._pool.register(block, self._number.to_bytes(16, "big"))
            blocks.append(block)
            self._growing[place] = tenant, blocks
            if len(blocks) == _BLOCKS_A_SEQUENCE:
                self._held.append(blocks)
                self._growing[place] = tenant, []
            if len(self._held) > _GROWING:
                self._pool.release(self._held.popleft())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The size of the pools, and how much happens in them."""
    parser.add_argument("--blocks", type=int, default=200_000)
    parser.add_argument("--cells", type=int, default=50_000)
    parser.add_argument("--changes", type=int, default=2_000, help="blocks taken a second")
    parser.add_argument("--seconds", type=int, default=60, help="of simulated time")


def run(options: argparse.Namespace) -> Result:
    """Measure. Raises `BenchError` for pools that the load does not fit into."""
    if min(options.blocks, options.cells) < _LEAST_BLOCKS:
        raise BenchError(f"--blocks and --cells: at least {_LEAST_BLOCKS}")
    engine_percent, kib_per_s, first_kib = _engine(options)
    trip_percent = asyncio.run(_round_trips(options.blocks))
    requests_percent = _requests(options.blocks)
    figures = {
        "wall_core_percent": engine_percent + trip_percent,
        "requests_core_percent": requests_percent,
        "wall_kib_per_s": kib_per_s,
        "wall_first_kib": first_kib,
    }
    pictures = _browser(options.cells)
    if isinstance(pictures, str):
        print(f"frames in a browser: {pictures}")
        return Result(figures)
    return Result(figures | pictures)


def _engine(options: argparse.Namespace) -> tuple[float, float, float]:
    """Percent of a core, KiB a second, and KiB of the first picture."""
    watched, alone = pool_core(options.blocks), pool_core(options.blocks)
    loads = [PoolLoad(one.scheduler.pool, seed=1) for one in (watched, alone)]
    for load in loads:
        load.grow(options.blocks)
    first_bytes = sum(map(len, whole(watched)))
    sent, seconds = 0, [0.0, 0.0]
    for tick in range(options.seconds * _TICKS_A_SECOND):
        for index in (0, 1) if tick % 2 else (1, 0):
            start = time.thread_time()
            loads[index].grow(options.changes // _TICKS_A_SECOND)
            if index == 0:
                sent += len(watched.wall.frame("bench"))
            seconds[index] += time.thread_time() - start
    percent = 100 * (seconds[0] - seconds[1]) / options.seconds
    return percent, sent / 1024 / options.seconds, first_bytes / 1024


async def _round_trips(num_blocks: int) -> float:
    """Percent of a core for the frames of a second to an engine in which nothing happens."""
    engine = LocalEngine(lambda: pool_core(num_blocks))
    await engine.start()
    try:
        while (await engine.wall("bench"))[0] & PARTIAL:
            pass
        start = time.process_time()
        for _ in range(_ROUND_TRIPS):
            await engine.wall("bench")
        return 100 * _TICKS_A_SECOND * (time.process_time() - start) / _ROUND_TRIPS
    finally:
        await engine.close()


def _requests(num_blocks: int) -> float:
    """Percent of a core for one question a second, about a block that is found last."""
    draw, core = random.Random(3), pool_core(num_blocks)
    most = num_blocks * 16 // (2 * _PROMPT_TOKENS)
    for number in range(min(_CONVERSATIONS, most)):
        core.submit(_turn(f"turn {number}", draw, 1))
        finish(core)
    for number in range(min(_TURNS, most)):
        core.submit(_turn(f"running {number}", draw, 1_000_000))
    while core.stats().waiting or any(one.state != "running" for one in core.roll().requests):
        core.step()
    start = time.thread_time()
    for _ in range(_QUESTIONS):
        core.roll(cell=0)
    return 100 * (time.thread_time() - start) / _QUESTIONS


def _turn(name: str, draw: random.Random, max_tokens: int) -> EngineRequest:
    prompt = draw.choices(range(100, 30_000), k=_PROMPT_TOKENS)
    return request(name, prompt, max_tokens, conversation=name)


def _browser(num_cells: int) -> dict[str, float] | str:
    """What drawing takes, or why nobody knows."""
    try:
        chromium = browser_path()
        from playwright.async_api import async_playwright
    except (BenchError, ModuleNotFoundError) as error:
        return f"not measured: {error}"
    core = pool_core(num_cells)
    load = PoolLoad(core.scheduler.pool, seed=2)
    load.grow(num_cells)
    first, frames = whole(core), []
    for _ in range(_PICTURES):
        load.grow(1000)
        frames.append(core.wall.frame("bench"))
    coded = [[base64.b64encode(one).decode() for one in part] for part in (frames, first)]

    async def draw() -> tuple[list[float], list[float]]:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = await browser.new_page(viewport={"width": 1440, "height": 900})
            await page.route("**/*", _serve)
            await page.goto(_PAGE)
            work, intervals = await page.evaluate(_DRAW, coded)
            await browser.close()
            return work, intervals

    work, intervals = asyncio.run(draw())
    return {"frame_ms_p95": percentile(work, 95), "interval_ms_p95": percentile(intervals, 95)}


async def _serve(route: Any) -> None:
    """The console's own files, and a page without contents."""
    name = route.request.url.removeprefix(_PAGE)
    if not name:
        style = "<!doctype html><link rel=stylesheet href=style.css><body>"
        await route.fulfill(body=style, content_type="text/html")
        return
    content = (files("app.console") / "static" / name).read_bytes()
    await route.fulfill(body=content, content_type=mimetypes.guess_type(name)[0])


def pool_core(num_blocks: int) -> EngineCore:
    """An engine's loop without a model, over so many blocks."""
    return scripted_core(AnyToken(), 16 * num_blocks, 16)


def whole(core: EngineCore) -> list[bytes]:
    """The frames of the first picture."""
    frames = [core.wall.frame("bench")]
    while frames[-1][0] & PARTIAL:
        frames.append(core.wall.frame("bench"))
    return frames
