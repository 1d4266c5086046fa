"""Clients that measure: one streamed answer over HTTP or over a WebSocket, token by token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, Final, Protocol

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException


@dataclass(frozen=True)
class Sampling:
    """How the tokens of an answer are chosen; greedily at temperature 0."""

    temperature: float = 0.0
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request: whose key, what it says, how long the answer is."""

    api_key: str
    system: str
    """The system prompt; without one where it is empty."""
    question: str
    output_tokens: int
    history: tuple[tuple[str, str], ...] = ()
    """Questions and answers of the conversation so far."""
    sampling: Sampling = Sampling()
    user: str | None = None
    """The end user, in whose namespace the prompt is cached; the tenant's where there is none."""
    schema: dict[str, Any] | None = None
    """What the answer is held to, which then ends where that says. Over HTTP alone."""
    adapter: int | None = None
    """The number of the adapter that answers. Over HTTP alone."""
    pictures: tuple[str, ...] = ()
    """URLs of what the question shows. Over HTTP alone."""


@dataclass
class Timing:
    """When what of an answer arrived (seconds of `perf_counter`), and what it cost."""

    sent_at: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str | None = None

    @property
    def ttft_seconds(self) -> float:
        """From sending the request to the first text of the answer."""
        return self.arrivals[0] - self.sent_at

    @property
    def gaps_seconds(self) -> list[float]:
        """Between two arrivals of text."""
        return [after - before for before, after in pairwise(self.arrivals)]


class Driver(Protocol):
    """Sends requests to one service."""

    async def ask(self, ask: Ask, timing: Timing) -> None:
        """Fill `timing` as the answer comes. Raises `DriverError`, `OSError` or a timeout."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class DriverError(Exception):
    """The service refused or broke off an answer."""


class HttpDriver:
    """OpenAI-compatible chat completions, streamed as server-sent events.

    `omits` are fields that the server refuses; with `new_connections` none is used twice. `adapter`
    is what a request for adapter number `{number}` has in its body, in JSON.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        omits: Collection[str] = (),
        new_connections: bool = False,
        adapter: str = "",
    ) -> None:
        self._model = model
        self._adapter = adapter
        self._omits = omits
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=None,
            trust_env=False,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=0 if new_connections else None
            ),
        )

    async def ask(self, ask: Ask, timing: Timing) -> None:
        """See `Driver.ask`."""
        body = {
            "model": self._model,
            "messages": [*_system(ask), *_messages(ask)],
            "max_tokens": ask.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | _choices(ask)
        if ask.schema is not None:
            del body["ignore_eos"]
            named = {"name": "bench", "schema": ask.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if ask.adapter is not None:
            body |= json.loads(self._adapter.replace("{number}", str(ask.adapter)))
        body = {name: value for name, value in body.items() if name not in self._omits}
        headers = {"authorization": f"Bearer {ask.api_key}"}
        timing.sent_at = perf_counter()
        try:
            async with self._client.stream(
                "POST", "/v1/chat/completions", json=body, headers=headers
            ) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise DriverError(f"HTTP {response.status_code}: {text[:300]}")
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        self._take(json.loads(line.removeprefix("data: ")), timing)
        except httpx.HTTPError as error:
            raise DriverError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """See `Driver.close`."""
        await self._client.aclose()

    @staticmethod
    def _take(chunk: dict[str, object], timing: Timing) -> None:
        if "error" in chunk:
            raise DriverError(str(chunk["error"]))
        choices = chunk["choices"]
        assert isinstance(choices, list)
        if choices and (text := choices[0]["delta"].get("content")):
            timing.arrivals.append(perf_counter())
            timing.text += text
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details") or {}
            timing.prompt_tokens = usage["prompt_tokens"]
            timing.cached_tokens = details.get("cached_tokens") or 0
            timing.output_tokens = usage["completion_tokens"]


class WebSocketDriver:
    """The Responses API over WebSockets; sockets are kept and used again, one answer at a time."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model
        self._idle: dict[str, list[ClientConnection]] = {}
        self._all: list[ClientConnection] = []

    async def ask(self, ask: Ask, timing: Timing) -> None:
        """See `Driver.ask`; the time to open a socket is not part of the answer's."""
        message = {
            "type": "response.create",
            "model": self._model,
            "input": _messages(ask),
            "max_output_tokens": ask.output_tokens,
            "ignore_eos": True,
            "store": False,
        } | _choices(ask)
        if ask.system:
            message["instructions"] = ask.system
        try:
            socket = await self._socket(ask.api_key)
            timing.sent_at = perf_counter()
            await socket.send(json.dumps(message))
            while not self._take(json.loads(await socket.recv()), timing):
                pass
        except WebSocketException as error:
            raise DriverError(f"{type(error).__name__}: {error}") from error
        self._idle[ask.api_key].append(socket)

    async def close(self) -> None:
        """See `Driver.close`."""
        await asyncio.gather(*(socket.close() for socket in self._all))

    async def _socket(self, api_key: str) -> ClientConnection:
        idle = self._idle.setdefault(api_key, [])
        if idle:
            return idle.pop()
        socket = await connect_to(self._url, api_key)
        self._all.append(socket)
        return socket

    @staticmethod
    def _take(event: dict[str, object], timing: Timing) -> bool:
        """Account for one event; returns whether it is the last."""
        kind = event["type"]
        if kind == "response.output_text.delta":
            timing.arrivals.append(perf_counter())
            timing.text += str(event["delta"])
        elif kind == "error" or kind == "response.failed":
            raise DriverError(json.dumps(event)[:300])
        elif kind in ("response.completed", "response.incomplete"):
            response = event["response"]
            assert isinstance(response, dict)
            usage = response["usage"]
            timing.prompt_tokens = usage["input_tokens"]
            timing.cached_tokens = usage["input_tokens_details"]["cached_tokens"]
            timing.output_tokens = usage["output_tokens"]
            return True
        return False


async def connect_to(url: str, api_key: str, **options: Any) -> ClientConnection:
    """A new socket of the Responses API."""
    return await connect(
        "ws" + url.removeprefix("http") + "/v1/responses",
        additional_headers={"authorization": f"Bearer {api_key}"},
        compression=None,
        proxy=None,
        max_size=None,
        **options,
    )


DRIVERS: Final[Mapping[str, Callable[[str, str], Driver]]] = {
    "http": HttpDriver,
    "websocket": WebSocketDriver,
}
"""By transport: made of a server's URL and its model's name."""


def _system(ask: Ask) -> list[dict[str, str]]:
    return [{"role": "system", "content": ask.system}] if ask.system else []


def _messages(ask: Ask) -> list[dict[str, Any]]:
    """The conversation so far and the question, alike for both APIs but for pictures."""
    texts = [text for turn in ask.history for text in turn] + [ask.question]
    roles = ("user", "assistant")
    said: list[dict[str, Any]]
    said = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    if ask.pictures:
        shown = [{"type": "image_url", "image_url": {"url": url}} for url in ask.pictures]
        said[-1]["content"] = [*shown, {"type": "text", "text": ask.question}]
    return said


def _choices(ask: Ask) -> dict[str, object]:
    """How the tokens are chosen, and whose answer it is; nothing that is a server's default."""
    found: dict[str, object] = {"temperature": ask.sampling.temperature}
    if ask.sampling.top_p < 1:
        found["top_p"] = ask.sampling.top_p
    if ask.user is not None:
        found["user"] = ask.user
    return found
