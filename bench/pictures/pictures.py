"""What pictures cost: the first question about one, the second, and streams of texts beside them.

A random model of SmolVLM-500M's shape is served from its engine's process. `questions` asks twice
about each of some pictures, which are seen, computed, and found; between them goes a turn of text
of as many new tokens behind as long a conversation. `streams` has as many texts decode, alone,
beside short chats, and beside chats that each begin with a new picture, in turns. `hostile` has one
text decode while the service's eyes look at files that are not what they seem. With `--peers` other
servers are asked the same (`bench.pictures.peers`).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import msgspec
import numpy as np

from app.pictures.eyes import Eyes
from app.pictures.picture import BadPicture
from bench.common import engines
from bench.common.figures import percentile
from bench.common.machine import rss_mib
from bench.pictures import peers
from bench.pictures.hostile import hostile
from bench.pictures.model import TILE, TILE_TOKENS, save_model
from bench.registry import BenchError, Result
from engine.api import EngineRequest, PictureHeader, PictureInput, PictureUse
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig

PARTS: Final = ("questions", "streams", "hostile", "peers")
FIGURES: Final = {
    "first_question_ttft_ms": "first token of the first question about a picture, ms, median",
    "second_question_ttft_ms": "of the second one",
    "second_question_ttft_ratio": "second over first",
    "second_question_over_text": "second over a turn of text with as many new tokens",
    "text_itl_ms": "streams of texts beside short chats: median of the times between tokens, ms",
    "text_itl_ratio": "beside chats with pictures over that",
    "text_itl_p99_ms": "the longest hundredth of them, beside short chats, ms",
    "text_itl_p99_ms_pictures": "beside chats with pictures",
    "text_itl_ratio_alone": "median beside chats with pictures over that of the streams alone",
    "pictures_per_s": "that the tower sees beside the streams",
    "hostile_files": "that were looked at, or refused",
    "hostile_crashes": "of the process that looks at them",
    "hostile_pause_ms": "the longest time between two tokens of a text beside them, ms",
    "hostile_stall_ms": "the longest for which they held up the service's event loop, ms",
    "hostile_growth_mib": "of the memory of the process that looks, from the first to the last",
    **peers.FIGURES,
}
_QUESTION_TOKENS: Final = 24
_PIECE_BYTES: Final = 1 << 20
_TICK_SECONDS: Final = 0.005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, help="CPU threads of the engine")
    parser.add_argument("--tiles", type=int, default=17, help="of a picture: 17 of 1,024 x 1,024")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=8, help="of texts, and as many chats")
    parser.add_argument("--files", type=int, default=500, help="that are hostile")
    parser.add_argument("--seconds", type=float, default=30.0, help="of streams in each turn")
    peers.add_arguments(parser)


def run(options: argparse.Namespace) -> Result:
    """Measure what is asked for. Raises `BenchError`."""
    if options.parts == ["peers"] and options.peers is None:
        raise BenchError("--parts peers: there are none without --peers")
    with tempfile.TemporaryDirectory(prefix="partywall-bench-") as folder:
        save_model(Path(folder))
        figures: dict[str, float] = {}
        if options.parts != ["peers"]:
            figures |= asyncio.run(_measure(options, folder))
        if "peers" in options.parts and options.peers is not None:
            figures |= peers.measure(options, Path(folder))
        return Result(figures)


async def _measure(options: argparse.Namespace, folder: str) -> dict[str, float]:
    config = EngineConfig(
        model_path=folder,
        dtype=options.dtype,
        threads=options.threads,
        kv_memory_bytes=4 << 30,
        max_context_tokens=8192,
    )
    bed = _Bed(options, ProcessEngine(config))
    await bed.engine.start()
    try:
        await bed.first_token(bed.words(64))
        figures: dict[str, float] = {}
        if "questions" in options.parts:
            figures |= await bed.questions()
        if "streams" in options.parts:
            figures |= await bed.streams()
        if "hostile" in options.parts:
            figures |= await bed.hostile(Path(folder))
        return figures
    finally:
        await bed.engine.close()


class _Bed:
    """The engine, and pictures that it may ask for."""

    def __init__(self, options: argparse.Namespace, engine: ProcessEngine) -> None:
        self.engine = engine
        engine.source = self._bring
        self._options = options
        self._numbers = count(1)
        self._random = random.Random(0)

    async def _bring(self, name: bytes) -> AsyncIterator[bytes]:
        seed, tiles = int.from_bytes(name[:8], "little"), self._options.tiles
        pixels = np.random.default_rng(seed).standard_normal(
            (1, tiles, 3, TILE, TILE), dtype=np.float32
        )
        arrays = {
            "pixel_values": pixels,
            "pixel_attention_mask": np.ones((1, tiles, TILE, TILE), np.int64),
        }
        inputs = [PictureInput(key, str(one.dtype), one.shape) for key, one in arrays.items()]
        yield msgspec.json.encode(PictureHeader(tuple(inputs)))
        for one in arrays.values():
            data = one.tobytes()
            for start in range(0, len(data), _PIECE_BYTES):
                yield data[start : start + _PIECE_BYTES]
                await asyncio.sleep(0)

    def words(self, tokens: int) -> list[int]:
        """New ones."""
        return [self._random.randrange(100, 40_000) for _ in range(tokens)]

    def picture(self, start: int) -> tuple[PictureUse, list[int]]:
        """A new one, and its tokens: those of a tile behind a mark each."""
        token_id = self.engine.info.picture_token_id
        assert token_id is not None
        tokens = [49_189, *[token_id] * TILE_TOKENS] * self._options.tiles
        name = next(self._numbers).to_bytes(8, "little") * 4
        return PictureUse(name, start, len(tokens)), tokens

    def request(
        self, prompt: list[int], output: int, pictures: tuple[PictureUse, ...]
    ) -> EngineRequest:
        """With as many tokens as it may have."""
        name = f"r{next(self._numbers)}"
        return engines.request(name, prompt, output, min_tokens=output, pictures=pictures)

    async def first_token(self, prompt: list[int], *pictures: PictureUse) -> float:
        """Seconds until it is there."""
        started, seconds = perf_counter(), 0.0
        async for delta in engines.deltas_of(self.engine, self.request(prompt, 1, pictures)):
            seconds = seconds or (perf_counter() - started if delta.token_ids else 0.0)
        return seconds

    async def questions(self) -> dict[str, float]:
        """Two about each picture, and a turn of text as long."""
        times: dict[str, list[float]] = {"first": [], "second": [], "text": []}
        for _ in range(self._options.rounds):
            head = self.words(16)
            use, tokens = self.picture(len(head))
            for kind in ("first", "second"):
                asked = [*head, *tokens, *self.words(_QUESTION_TOKENS)]
                times[kind].append(await self.first_token(asked, use))
            said = self.words(len(head) + len(tokens))
            await self.first_token([*said, *self.words(_QUESTION_TOKENS)])
            times["text"].append(await self.first_token([*said, *self.words(_QUESTION_TOKENS)]))
        middle = {kind: median(seconds) for kind, seconds in times.items()}
        return {
            "first_question_ttft_ms": 1000 * middle["first"],
            "second_question_ttft_ms": 1000 * middle["second"],
            "second_question_ttft_ratio": middle["second"] / middle["first"],
            "second_question_over_text": middle["second"] / middle["text"],
        }

    async def streams(self) -> dict[str, float]:
        """Texts beside nothing, short chats and chats with pictures, in turns."""
        gaps: dict[str, list[float]] = {"alone": [], "texts": [], "pictures": []}
        before = (await self.engine.stats()).pictures_seen
        for _ in range(self._options.rounds):
            for kind, found in gaps.items():
                await self._turn(kind, found)
        seen = (await self.engine.stats()).pictures_seen - before
        middle = {kind: median(seconds) for kind, seconds in gaps.items()}
        return {
            "text_itl_ms": 1000 * middle["texts"],
            "text_itl_ratio": middle["pictures"] / middle["texts"],
            "text_itl_p99_ms": 1000 * percentile(gaps["texts"], 99),
            "text_itl_p99_ms_pictures": 1000 * percentile(gaps["pictures"], 99),
            "text_itl_ratio_alone": middle["pictures"] / middle["alone"],
            "pictures_per_s": seen / (self._options.rounds * self._options.seconds),
        }

    async def _turn(self, kind: str, gaps: list[float]) -> None:
        """Texts decode for a while, beside nothing or as many chats."""
        others = self._options.streams if kind != "alone" else 0
        tasks = [asyncio.create_task(self._text(gaps)) for _ in range(self._options.streams)]
        tasks += [asyncio.create_task(self._chats(kind == "pictures")) for _ in range(others)]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.seconds):
                await asyncio.gather(*tasks)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _text(self, gaps: list[float]) -> None:
        """Streams of words, one after the other."""
        while True:
            last = 0.0
            async for delta in engines.deltas_of(
                self.engine, self.request(self.words(32), 512, ())
            ):
                now = perf_counter()
                if last and delta.token_ids:
                    gaps.append(now - last)
                last = now

    async def _chats(self, has_pictures: bool) -> None:
        """Chats of two questions and short answers, one after the other."""
        while True:
            prompt = self.words(16)
            uses: tuple[PictureUse, ...] = ()
            if has_pictures:
                use, tokens = self.picture(len(prompt))
                prompt, uses = prompt + tokens, (use,)
            for _ in range(2):
                prompt = [*prompt, *self.words(_QUESTION_TOKENS)]
                async for delta in engines.deltas_of(self.engine, self.request(prompt, 16, uses)):
                    prompt = prompt + delta.token_ids

    async def hostile(self, folder: Path) -> dict[str, float]:
        """A text decodes beside files that are looked at, one after the other."""
        eyes = Eyes(folder, most_pixels=40_000_000, seconds=20)
        await eyes.open()
        assert eyes.pid is not None
        first, before = eyes.pid, rss_mib(eyes.pid)
        gaps, stalls = list[float](), list[float]()
        beside = [
            asyncio.create_task(self._text(gaps)),
            asyncio.create_task(_watch_loop(stalls)),
        ]
        crashes, pid = 0, first
        for _, data in hostile(self._options.files):
            with suppress(BadPicture):
                await eyes.look("a", data)
            crashes += eyes.pid != pid
            pid = eyes.pid or pid
        growth = rss_mib(pid) - before
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        eyes.close()
        return {
            "hostile_files": self._options.files,
            "hostile_crashes": crashes,
            "hostile_pause_ms": 1000 * max(gaps),
            "hostile_stall_ms": 1000 * max(stalls),
            "hostile_growth_mib": growth,
        }


async def _watch_loop(stalls: list[float]) -> None:
    """How much later than it should the event loop goes on, again and again."""
    while True:
        due = perf_counter() + _TICK_SECONDS
        await asyncio.sleep(_TICK_SECONDS)
        stalls.append(perf_counter() - due)
