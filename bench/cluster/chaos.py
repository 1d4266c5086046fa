"""Streams while parts of a cluster are killed and halted: what is cut, and how long they wait.

A head that keeps its tables, a node with two replicas, two front doors and a store, all on this
machine. Clients ask one thing again and again, greedy and in float32: every answer is known.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import tempfile
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Final

import httpx
from rich.table import Table

from bench.cluster.machinery import Machinery
from bench.common.service import Service, running_service, served_model, variable
from bench.registry import BenchError, Result

PARTS: Final = ("replica", "engine", "head", "store", "door")
FIGURES: Final = {
    f"{name}_{part}_{how}": meaning
    for part in PARTS
    for how in ("killed", "halted")
    for name, meaning in (
        ("gap_s", f"longest wait for more of a stream, the {part} {how}, s"),
        ("cut", f"streams without a terminal event, the {part} {how}"),
        ("wrong", f"answers unlike the calm ones, the {part} {how}"),
    )
} | {
    "gap_s_calm": "longest wait for more of a stream, nothing disturbed, s",
    "unready_s_head_killed": "until /readyz says 503, s",
    "unready_s_head_halted": "until /readyz says 503, s",
}
_TERMINAL: Final = ("response.completed", "response.incomplete")
_SETTLE_SECONDS: Final = 300.0
_UNREADY_SECONDS: Final = 5.0
"""After which readiness has told of a lost head."""


@dataclass
class Seen:
    """What clients have seen while one thing happened."""

    gap: float = 0.0
    num_answers: int = 0
    num_wrong: int = 0
    num_cut: int = 0
    unready_seconds: float | None = None
    texts: dict[int, str] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `--chaos`."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--halt-seconds", type=float, default=8.0)
    parser.add_argument("--head-seconds", type=float, default=60.0, help="without a head")


def run(options: argparse.Namespace) -> Result:
    """Kill and halt one part after the other under the same streams."""
    with _bed(options) as bed:
        return report(asyncio.run(bed.measure()))


def report(seen: Mapping[str, Seen]) -> Result:
    """What was seen as figures and a table; a failure where a stream has lost anything, or a lost
    head was not told of in time.
    """
    figures: dict[str, float] = {"gap_s_calm": seen["calm"].gap}
    table = Table("what", "answers", "wrong", "cut", "longest wait s", "/readyz 503 after s")
    for name, one in seen.items():
        late = "" if one.unready_seconds is None else f"{one.unready_seconds:.1f}"
        counts = map(str, (one.num_answers, one.num_wrong, one.num_cut))
        table.add_row(name.replace("_", " "), *counts, f"{one.gap:.1f}", late)
        if name != "calm":
            figures |= {f"gap_s_{name}": one.gap, f"cut_{name}": one.num_cut}
            figures[f"wrong_{name}"] = one.num_wrong
        if one.unready_seconds is not None:
            figures[f"unready_s_{name}"] = one.unready_seconds
    failures = [
        f"{name.replace('_', ' ')}: {harm}"
        for name, one in sorted(seen.items())
        if (harm := _harm(name, one))
    ]
    return Result(figures, [table], failure="; ".join(failures))


def _harm(name: str, one: Seen) -> str:
    """What streams have lost, or operators were not told of; nothing where all is well."""
    if one.num_wrong or (one.num_cut and name != "door_killed"):
        return f"{one.num_wrong} wrong, {one.num_cut} cut"
    late = one.unready_seconds
    if name.startswith("head_") and (late is None or late > _UNREADY_SECONDS):
        return "never told of" if late is None else f"told of after {late:.1f} s"
    return ""


@contextmanager
def _bed(options: argparse.Namespace) -> Iterator[_Bed]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp")))
        for name, value in Machinery.environment().items():
            stack.enter_context(variable(name, value))
        machinery = stack.enter_context(Machinery(folder))
        pepper = folder / "pepper"
        pepper.touch(0o600)
        pepper.write_text(secrets.token_hex(32))
        yield _Bed(options, machinery, pepper, stack)


class _Bed:
    """The cluster, its doors and their clients."""

    def __init__(
        self, options: argparse.Namespace, machinery: Machinery, pepper: Path, stack: ExitStack
    ) -> None:
        self._options = options
        self._machinery = machinery
        self._pepper = pepper
        self._stack = stack
        self._doors = [self._open_door(), self._open_door()]
        self._key = self._doors[0].create_tenant("bench")
        self._model = served_model(self._doors[0].url, self._key)
        self._texts: dict[int, str] = {}
        self._until = 0.0

    async def measure(self) -> dict[str, Seen]:
        """What is seen, by what happened."""
        await self._settle()
        calm = await self._under(asyncio.sleep(0), 0)
        self._texts = calm.texts
        found = {"calm": await self._under(asyncio.sleep(0), 5)}
        for part in self._options.parts:
            for how, number in (("killed", signal.SIGKILL), ("halted", signal.SIGSTOP)):
                is_head = part == "head" and how == "killed"
                seconds = self._options.head_seconds if is_head else self._options.halt_seconds
                found[f"{part}_{how}"] = await self._under(
                    self._disturb(part, number, seconds), seconds + 5, watches=part == "head"
                )
                await self._settle()
        return found

    async def _disturb(self, part: str, number: signal.Signals, seconds: float) -> None:
        """Send the signal, and mend what it did some time later."""
        await asyncio.sleep(2)
        pid = self._doors[1].pid if part == "door" else self._machinery.find(part)
        os.kill(pid, number)
        await asyncio.sleep(seconds)
        if number == signal.SIGSTOP:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        elif part == "door":
            self._doors[1] = await asyncio.to_thread(self._open_door)
        else:
            await asyncio.to_thread(self._machinery.mend, part)

    async def _under(self, what: Awaitable[None], seconds: float, *, watches: bool = False) -> Seen:
        """Have all clients ask for so long at least, while it happens."""
        seen = Seen()
        self._until = perf_counter() + seconds
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=300, limits=limits, trust_env=False) as client:
            watching = asyncio.create_task(
                self._watch(client, seen) if watches else asyncio.sleep(0)
            )
            numbers = range(self._options.streams)
            await asyncio.gather(what, *(self._client(client, one, seen) for one in numbers))
            watching.cancel()
        return seen

    async def _watch(self, client: httpx.AsyncClient, seen: Seen) -> None:
        """When readiness fails, from when the head is lost."""
        start = perf_counter() + 2
        ready = f"{self._doors[0].url}/readyz"
        while (await client.get(ready)).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        seen.unready_seconds = perf_counter() - start

    async def _client(self, client: httpx.AsyncClient, number: int, seen: Seen) -> None:
        """Ask again and again; who is cut off asks the first door."""
        door = number % 2
        while True:
            text, has_ended = await self._ask(client, door, number, seen)
            if not has_ended:
                seen.num_cut += 1
                door = 0
                continue
            seen.num_answers += 1
            seen.texts[number] = text
            seen.num_wrong += self._texts.get(number, text) != text
            if perf_counter() >= self._until:
                return

    async def _ask(
        self, client: httpx.AsyncClient, door: int, number: int, seen: Seen
    ) -> tuple[str, bool]:
        """The text of an answer, and whether it came to an end."""
        body = {
            "model": self._model,
            "input": f"Tell me a story about the number {number}.",
            "stream": True,
            "store": False,
            "temperature": 0,
            "max_output_tokens": self._options.output_tokens,
        }
        text, last = "", perf_counter()
        headers = {"authorization": f"Bearer {self._key}"}
        address = f"{self._doors[door].url}/v1/responses"
        try:
            async with client.stream("POST", address, json=body, headers=headers) as answer:
                if answer.status_code != 200:
                    raise BenchError((await answer.aread()).decode())
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    now = perf_counter()
                    seen.gap, last = max(seen.gap, now - last), now
                    if event["type"] == "response.output_text.delta":
                        text += event["delta"]
                    elif event["type"] in _TERMINAL:
                        return text, True
                    elif event["type"] in ("response.failed", "error"):
                        return f"{text} {event}", True
        except httpx.TransportError:
            pass
        return text, False

    async def _settle(self) -> None:
        """Wait until all is there again."""
        async with asyncio.timeout(_SETTLE_SECONDS), httpx.AsyncClient(trust_env=False) as client:
            while not (self._machinery.is_whole and await self._are_ready(client)):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            await asyncio.sleep(5)

    async def _are_ready(self, client: httpx.AsyncClient) -> bool:
        with suppress(httpx.TransportError):
            answers = [await client.get(f"{door.url}/readyz") for door in self._doors]
            return all(one.json() == {"status": "ready"} for one in answers)
        return False

    def _open_door(self) -> Service:
        machinery = self._machinery
        options = {
            "--ray-address": machinery.address,
            "--redis-url": machinery.store_url,
            "--pepper-file": str(self._pepper),
            "--replicas": "2",
            "--threads": "1",
            "--dtype": "float32",
            "--kv-memory": "256MiB",
            "--kept-disk": "0",
            "--model": self._options.model,
        }
        words = [word for pair in options.items() for word in pair]
        door = running_service(["--cluster", *words], "bench.cluster.door")
        return self._stack.enter_context(door)
