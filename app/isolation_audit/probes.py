"""Probes with prompts and formats: one tenant sends something, then somebody asks for an answer.

In each of them the owner sends something new first; the probe is for the same thing or for another
new one of the same length. So both find the server as a request just before leaves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from app.isolation_audit.observing import Feature, Observation, told, told_by_usage
from app.isolation_audit.server import Answer, RequestFailed, Server, Tenant
from app.isolation_audit.texts import Texts

_TOKENS: Final = 8
_RUNNING_TOKENS: Final = 256
"""Of an answer that runs while a probe is read; it is broken off then."""
_RUNNING_BEFORE: Final = 3
"""Arrivals of such an answer before the probe is sent."""


class Probe(Protocol):
    """A way to look at some channels."""

    @property
    def channels(self) -> Sequence[str]:
        """Those that it looks at."""
        ...

    async def is_served(self) -> bool:
        """Whether the server knows what the probe asks for. Raises `RequestFailed`."""
        ...

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """Let the owner send something, and look from the prober's side.

        The probe is for the same if `is_sent`. Raises `RequestFailed`: then nothing is known, and
        only another call, which sends something else, can tell.
        """
        ...


@dataclass(frozen=True)
class Scene:
    """What all probes need."""

    server: Server
    owner: Tenant
    texts: Texts


class PromptProbe:
    """Asks for the answer to a prompt."""

    channels: Sequence[str] = ("ttft", "itl", "usage", "diagnostics")

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def is_served(self) -> bool:
        """See `Probe`."""
        return True

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        server, texts = self._scene.server, self._scene.texts
        prompt = texts.prompt()
        await server.chat(self._scene.owner, prompt, _TOKENS)
        answer = await server.chat(prober, prompt if is_sent else texts.prompt(), _TOKENS)
        found: Observation = {Feature("ttft", "seconds"): _ttft(answer)}
        if len(answer.arrivals) > 1:
            first, last = answer.arrivals[0], answer.arrivals[-1]
            found[Feature("itl", "mean gap seconds")] = (last - first) / (len(answer.arrivals) - 1)
        return found | told_by_usage(answer.usage) | told("diagnostics", answer.told)


class StallProbe:
    """Looks how long an answer of the prober's own pauses while another prompt of its is read.

    The shorter the pause, the less of the prompt there was to compute.
    """

    channels: Sequence[str] = ("itl",)

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def is_served(self) -> bool:
        """See `Probe`."""
        return True

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        server, texts = self._scene.server, self._scene.texts
        prompt = texts.prompt()
        await server.chat(self._scene.owner, prompt, 1)
        running = _Running(server, prober, texts.prompt())
        try:
            await running.until(lambda at: len(at) >= _RUNNING_BEFORE)
            answer = await server.chat(prober, prompt if is_sent else texts.prompt(), 1)
            await running.until(lambda at: at[-1] > answer.arrivals[0])
        finally:
            await running.stop()
        pauses = [
            after - before
            for before, after in pairwise(running.arrivals)
            if after > answer.sent_at and before < answer.arrivals[0]
        ]
        return {Feature("itl", "longest gap seconds"): max(pauses)}


class _Running:
    """An answer that comes while something else is done."""

    def __init__(self, server: Server, tenant: Tenant, prompt: str) -> None:
        self._answer = Answer()
        self._news: asyncio.Queue[None] = asyncio.Queue()
        self._task = asyncio.create_task(
            server.chat(
                tenant,
                prompt,
                _RUNNING_TOKENS,
                answer=self._answer,
                on_text=lambda: self._news.put_nowait(None),
            )
        )
        self._task.add_done_callback(lambda _: self._news.put_nowait(None))

    @property
    def arrivals(self) -> list[float]:
        """Times at which text has come."""
        return self._answer.arrivals

    async def until(self, enough: Callable[[list[float]], bool]) -> None:
        """Wait for arrivals. Raises `RequestFailed` if the answer ends before there are enough."""
        while not enough(self.arrivals):
            if self._task.done():
                self._task.result()
                raise RequestFailed("an answer that was to run beside a probe ended before it")
            await self._news.get()

    async def stop(self) -> None:
        """Break it off."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class SchemaProbe:
    """Asks for an answer held to a schema; the prompts are new, it is the schema that was sent."""

    channels: Sequence[str] = ("constrained",)

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def is_served(self) -> bool:
        """See `Probe`. A server that ignores the schema answers with something else."""
        server, owner, texts = self._scene.server, self._scene.owner, self._scene.texts
        try:
            answer = await server.chat(owner, texts.short_prompt(), _TOKENS, schema=texts.schema())
        except RequestFailed as error:
            if 400 <= error.status < 500 and error.status != 429:
                return False
            raise
        return answer.text.lstrip().startswith("{")

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        server, texts = self._scene.server, self._scene.texts
        schema = texts.schema()
        await server.chat(self._scene.owner, texts.short_prompt(), 1, schema=schema)
        asked = schema if is_sent else texts.schema()
        answer = await server.chat(prober, texts.short_prompt(), 1, schema=asked)
        return {Feature("constrained", "seconds"): _ttft(answer)}


def _ttft(answer: Answer) -> float:
    return answer.arrivals[0] - answer.sent_at
