"""Probes, a way to look each: one tenant sends something, then somebody asks for an answer.

In each of them the owner sends something new first; the probe is for the same thing or for another
new one of the same length. So both find the server as a request just before leaves it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from app.isolation_audit.observing import Feature, Observation, told, told_by_usage
from app.isolation_audit.server import Answer, AuditError, Reply, RequestFailed, Server, Tenant
from app.isolation_audit.texts import Texts

_TOKENS: Final = 8
_RUNNING_TOKENS: Final = 256
"""Of an answer that runs while a probe is read; it is broken off then."""
_RUNNING_BEFORE: Final = 3
"""Arrivals of such an answer before the probe is sent."""
_RESPONSES: Final = "/v1/responses"
_FEWEST_TOKENS: Final = (1, 16)
"""Of an answer, by the server: the first that it takes."""
_TOLD_BY_ERRORS: Final = ("type", "code", "param", "message")


@dataclass(frozen=True)
class AdapterNames:
    """Adapters of the same files, in the same order, as each of the tenants asks for its own."""

    owner: Sequence[str] = ()
    neighbour: Sequence[str] = ()


NO_ADAPTERS: Final = AdapterNames()


@dataclass(frozen=True)
class Scene:
    """What all probes need."""

    server: Server
    owner: Tenant
    neighbour: Tenant
    texts: Texts
    adapters: AdapterNames = NO_ADAPTERS


class Probe(ABC):
    """A way to look at some channels."""

    channels: Sequence[str]

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def is_served(self) -> bool:
        """Whether the server knows what the probe asks for. Raises `RequestFailed`."""
        return True

    @abstractmethod
    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """Let the owner send something, and look from the prober's side.

        The probe is for the same if `is_sent`. Raises `RequestFailed`: then nothing is known, and
        only another call, which sends something else, can tell.
        """


class PromptProbe(Probe):
    """Asks for the answer to a prompt."""

    channels = ("ttft", "itl", "usage", "diagnostics")

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        server, texts = self._scene.server, self._scene.texts
        prompt = texts.prompt()
        await server.chat(self._scene.owner, prompt, _TOKENS)
        answer = await server.chat(prober, prompt if is_sent else texts.prompt(), _TOKENS)
        found: Observation = {Feature("ttft", "seconds"): answer.ttft_seconds}
        if len(answer.arrivals) > 1:
            first, last = answer.arrivals[0], answer.arrivals[-1]
            found[Feature("itl", "mean gap seconds")] = (last - first) / (len(answer.arrivals) - 1)
        return found | told_by_usage(answer.usage) | told("diagnostics", answer.told)


class StallProbe(Probe):
    """Looks how long an answer of the prober's own pauses while another prompt of its is read.

    The shorter the pause, the less of the prompt there was to compute.
    """

    channels = ("itl",)

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


class SchemaProbe(Probe):
    """Asks for an answer held to a schema; the prompts are new, it is the schema that was sent."""

    channels = ("constrained",)

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
        return {Feature("constrained", "seconds"): answer.ttft_seconds}


class StoredProbe(Probe):
    """Shows a stored response by its id, goes on from it, and has a prompt compared with its.

    Whoever has stored it is told what is in it (the control); anybody else should be told what is
    told about an id that nobody has.
    """

    channels = ("ids", "errors", "diagnostics")

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._tokens = 0
        self._has_diagnostics = False

    async def is_served(self) -> bool:
        """See `Probe`: whether a response is there for whoever has stored it."""
        owner = self._scene.owner
        for tokens in _FEWEST_TOKENS:
            self._tokens = tokens
            if created := _id_of(await self._ask(owner)):
                break
        else:
            return False
        shown = await self._scene.server.ask(owner, "GET", f"{_RESPONSES}/{created}")
        diagnosed = await self._compared(owner, created)
        self._has_diagnostics = bool(diagnosed)
        return shown.status == 200

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        server = self._scene.server
        stored = _id_of(await self._ask(self._scene.owner))
        if not stored:
            raise RequestFailed("a response was not stored")
        named = stored if is_sent else self._scene.texts.id_like(stored)
        shown = await server.ask(prober, "GET", f"{_RESPONSES}/{named}")
        continued = await self._ask(prober, previous_response_id=named)
        found: Observation = {
            Feature("ids", "answer"): gist(shown, named),
            Feature("ids", "seconds"): shown.seconds,
            Feature("errors", "answer"): gist(continued, named),
            Feature("errors", "seconds"): continued.seconds,
        }
        return found | (await self._compared(prober, named) if self._has_diagnostics else {})

    async def _ask(self, tenant: Tenant, **more: Any) -> Reply:
        body = {
            "model": self._scene.server.model,
            "input": self._scene.texts.prompt(),
            "max_output_tokens": self._tokens,
            "store": True,
        }
        return await self._scene.server.ask(tenant, "POST", _RESPONSES, body | more)

    async def _compared(self, tenant: Tenant, named: str) -> Observation:
        """What the server says of a new prompt beside a response; nothing if it says nothing."""
        reply = await self._ask(tenant, prompt_cache_options={"comparison_response_id": named})
        if reply.status != 200 or not isinstance(reply.document, dict):
            return {}
        return told("diagnostics", reply.document.get("prompt_cache_diagnostics") or {})


def _id_of(reply: Reply) -> str:
    """The id of a response that was made; empty if none was. Raises `AuditError` for a bad one."""
    if reply.status != 200 or not isinstance(reply.document, dict):
        return ""
    named = reply.document.get("id")
    if not isinstance(named, str) or not named.replace("_", "").replace("-", "").isalnum():
        raise AuditError(f"a response has the id {named!r}, which cannot be asked for")
    return named


def gist(reply: Reply, named: str) -> str:
    """Status and error, alike for all ids. What a response says is the same for no two."""
    if reply.status < 300 or not isinstance(reply.document, dict):
        return str(reply.status)
    error = reply.document.get("error")
    error = error if isinstance(error, dict) else reply.document
    parts = [str(error.get(name)).replace(named, "ID") for name in _TOLD_BY_ERRORS]
    return " · ".join([str(reply.status), *(part for part in parts if part != "None")])


PROBES: Final[tuple[type[Probe], ...]] = (PromptProbe, StallProbe, StoredProbe, SchemaProbe)
