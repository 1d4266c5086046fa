"""A server of the OpenAI API, asked as one tenant or another, politely: what it says, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import httpx

_STANDARD: Final = {"id", "object", "created", "model", "choices", "usage"}
"""Of a chunk of a chat completion. Whatever else it has, the server tells of its own accord."""
_MOST_WAIT_SECONDS: Final = 60.0
_MOST_ERROR_CHARACTERS: Final = 300


class AuditError(Exception):
    """The audit cannot go on; the message says why."""


class RequestFailed(AuditError):
    """One request failed, which another one may not."""

    def __init__(self, message: str, status: int = 0, wait_seconds: float = 0.0) -> None:
        """`wait_seconds` is how long the server wants to be left alone."""
        super().__init__(message)
        self.status = status
        self.wait_seconds = wait_seconds


@dataclass(frozen=True)
class Tenant:
    """Who asks: a key, a `cache_salt` in each request, both or nothing at all."""

    api_key: str | None = None
    salt: str | None = None


@dataclass
class Answer:
    """A streamed answer as it comes. Times are the clock's, in seconds."""

    sent_at: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    """Of the chunks that bring text."""
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    """What the chunks have besides what the API has in them, and the headers."""

    @property
    def ttft_seconds(self) -> float:
        """From sending the request to the first text."""
        return self.arrivals[0] - self.sent_at


@dataclass(frozen=True)
class Reply:
    """What a request without a stream was answered, and after how many seconds."""

    status: int
    document: Any
    seconds: float


class Server:
    """Sends one request at a time, or a few side by side, but no more a second than it may."""

    def __init__(
        self,
        url: str,
        model: str = "",
        *,
        rate: float,
        timeout_seconds: float,
        new_connections: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`rate` is requests a second, `timeout_seconds` how long one may take in all.

        `url` may end with `/v1`. A server that serves one model needs no name of it, see
        `find_model`. Time itself, and the way to the server, are given for tests alone.
        """
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self._timeout_seconds = timeout_seconds
        self._apart_seconds = 1 / rate
        self._next_at = clock()
        self._clock = clock
        self._sleep = sleep
        kept = 0 if new_connections else None
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=None,
            trust_env=False,
            transport=transport,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=kept),
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def find_model(self, tenant: Tenant) -> None:
        """Ask for the first model that it lists, if none was named. Raises `AuditError`."""
        if self.model:
            return
        reply = await self.ask(tenant, "GET", "/v1/models")
        try:
            self.model = str(reply.document["data"][0]["id"])
        except (LookupError, TypeError):
            told = str(reply.document)[:_MOST_ERROR_CHARACTERS]
            raise AuditError(f"{self.url} lists no models: HTTP {reply.status}: {told}") from None

    async def wait(self, seconds: float) -> None:
        """Leave it alone for a while, but not for longer than a minute."""
        await self._sleep(min(seconds, _MOST_WAIT_SECONDS))

    async def chat(
        self,
        tenant: Tenant,
        prompt: str,
        tokens: int,
        *,
        model: str | None = None,
        schema: Mapping[str, Any] | None = None,
        answer: Answer | None = None,
        on_text: Callable[[], None] = lambda: None,
    ) -> Answer:
        """The answer of so many tokens to a prompt, held to a schema if there is one.

        `model` is asked instead of the server's. `answer` is filled as it comes, and `on_text`
        called at each arrival. Raises `RequestFailed`, also for an answer without text.
        """
        answer = answer or Answer()
        body: dict[str, Any] = {
            "model": model or self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if schema is not None:
            held = {"name": "audit", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": held}
        async with self._sent(tenant, "POST", "/v1/chat/completions", body, answer) as response:
            answer.told |= {f"header.{name}": text for name, text in response.headers.items()}
            async for line in response.aiter_lines():
                if line.startswith("data:") and line.removeprefix("data:").strip() != "[DONE]":
                    self._take(line.removeprefix("data:"), answer, on_text)
        if not answer.arrivals:
            raise RequestFailed("an answer had no text")
        return answer

    async def ask(
        self, tenant: Tenant, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Reply:
        """What a request without a stream is answered, whatever its status is.

        Raises `RequestFailed` for the statuses of a busy server, too: 429 and 5xx.
        """
        sent = Answer()
        async with self._sent(tenant, method, path, body, sent, (429,)) as response:
            content = await response.aread()
        seconds = self._clock() - sent.sent_at
        try:
            return Reply(response.status_code, json.loads(content), seconds)
        except ValueError:
            return Reply(response.status_code, content.decode(errors="replace"), seconds)

    @asynccontextmanager
    async def _sent(
        self,
        tenant: Tenant,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        answer: Answer,
        refusals: Collection[int] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """A request in its turn. All errors are failures; with `refusals` those and 5xx alone."""
        await self._turn()
        headers = {} if tenant.api_key is None else {"authorization": f"Bearer {tenant.api_key}"}
        if tenant.salt is not None and body is not None:
            body = body | {"cache_salt": tenant.salt}
        answer.sent_at = self._clock()
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._http.stream(method, path, json=body, headers=headers) as response,
            ):
                status = response.status_code
                if status >= 500 or (status >= 400 if refusals is None else status in refusals):
                    raise await _failure(response)
                yield response
        except TimeoutError:
            raise RequestFailed(f"no whole answer within {self._timeout_seconds:g} s") from None
        except httpx.HTTPError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error

    async def _turn(self) -> None:
        """Wait until the next request may be sent."""
        now = self._clock()
        at = max(now, self._next_at)
        self._next_at = at + self._apart_seconds
        if at > now:
            await self._sleep(at - now)

    def _take(self, data: str, answer: Answer, on_text: Callable[[], None]) -> None:
        """Account for one chunk."""
        at = self._clock()
        try:
            chunk = json.loads(data)
            if chunk.get("error"):
                raise RequestFailed(str(chunk["error"])[:_MOST_ERROR_CHARACTERS])
            choices = chunk.get("choices") or []
            delta = choices[0].get("delta") or {} if choices else {}
            text = delta.get("content") or delta.get("reasoning_content") or ""
        except (ValueError, AttributeError, IndexError, TypeError) as error:
            raise RequestFailed(f"a chunk is no chat completion's: {error}") from None
        answer.usage = chunk.get("usage") or answer.usage
        answer.told |= {name: value for name, value in chunk.items() if name not in _STANDARD}
        if text:
            answer.text += text
            answer.arrivals.append(at)
            on_text()


async def _failure(response: httpx.Response) -> RequestFailed:
    text = (await response.aread()).decode(errors="replace")[:_MOST_ERROR_CHARACTERS]
    try:
        wait_seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        wait_seconds = 0.0
    status = response.status_code
    return RequestFailed(f"HTTP {status}: {text}", status, max(0.0, wait_seconds))
