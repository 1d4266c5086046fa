"""A server of the OpenAI API in a time of its own, which leaks in the channels it is told to."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from typing import Any

import httpx

from app.isolation_audit.probes import AdapterNames
from app.isolation_audit.server import Server, Tenant

OWNER, NEIGHBOUR = Tenant("key-a"), Tenant("key-b")
ADAPTERS = AdapterNames(
    *(tuple(f"small:of-{one}-00{number}" for number in range(6)) for one in "ab")
)
"""What both have; a server has one of each tenant loaded."""


class LeakyServer(httpx.AsyncBaseTransport):
    """Knows what each tenant has sent; what others have sent only in the channels that leak."""

    def __init__(
        self,
        leaks: Collection[str] = (),
        *,
        caches: bool = True,
        by_salt: bool = False,
        fail_every: int = 0,
    ) -> None:
        self.now = 0.0
        self.requests: list[tuple[float, str]] = []
        self.slept: list[float] = []
        self._leaks = leaks
        self._caches = caches
        self._by_salt = by_salt
        self._fail_every = fail_every
        self._sent: defaultdict[str, set[str]] = defaultdict(set)
        self._loaded: dict[str, str] = {}
        self._last_used = ("", "")
        self._running = 0
        self._draw = random.Random(1)

    def client(self, *, rate: float = 1e9) -> Server:
        return Server(
            "http://server.test/v1",
            rate=rate,
            timeout_seconds=20,
            transport=self,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread() or b"{}")
        tenant = request.headers.get("authorization", "")
        if self._by_salt:
            tenant = body.get("cache_salt", "")
        elif tenant not in ("Bearer key-a", "Bearer key-b"):
            return _error(401, "who are you?")
        self.requests.append((self.now, tenant))
        if self._fail_every and len(self.requests) % self._fail_every == 0:
            return _error(503, "busy", {"retry-after": "2"})
        path = request.url.path
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "small"}]})
        if path == "/v1/chat/completions":
            refusal = self._load(tenant, body["model"])
            return refusal or self._chat(tenant, body)
        if self._caches and path == "/v1/responses":
            return self._respond(tenant, body)
        if self._caches and request.method == "GET":
            return self._show(tenant, path.rpartition("/")[2])
        return _error(404, "no such path")

    def _knows(self, channel: str, tenant: str, thing: str) -> bool:
        told = set().union(*self._sent.values()) if channel in self._leaks else self._sent[tenant]
        return self._caches and thing in told

    def _take(self, seconds: float) -> None:
        self.now += seconds * self._draw.lognormvariate(0, 0.2)

    def _load(self, tenant: str, model: str) -> httpx.Response | None:
        """Take the time to load an adapter; refuses one that the tenant has not."""
        own = ADAPTERS.owner if tenant == "Bearer key-a" else ADAPTERS.neighbour
        user, used = self._last_used
        if model != "small" and model not in own:
            is_known = model in (*ADAPTERS.owner, *ADAPTERS.neighbour)
            told = is_known and "adapter_names" in self._leaks
            return _error(404, f"{model} is another tenant's" if told else f"there is no {model}")
        self._last_used = tenant, model
        if model != "small":
            file = model[-3:]
            loaded = {file for _, file in self._loaded.items()}
            is_there = file == self._loaded.get(tenant)
            if not (is_there or ("adapters" in self._leaks and file in loaded)):
                self._take(0.08)
            self._loaded[tenant] = file
        if user != tenant and used != "small" and "adapter_use" in self._leaks:
            self._take(0.08)
        return None

    def _chat(self, tenant: str, body: dict[str, Any]) -> httpx.Response:
        prompt = body["messages"][0]["content"]
        schema = json.dumps(body.get("response_format") if self._caches else None)
        known = {
            channel: self._knows(channel, tenant, prompt)
            for channel in ("ttft", "itl", "usage", "diagnostics")
        }
        knows_schema = schema == "null" or self._knows("constrained", tenant, schema)
        self._sent[tenant] |= {prompt, schema}
        read_sooner = known["itl" if self._running else "ttft"]

        async def stream() -> AsyncIterator[bytes]:
            self._running += 1
            try:
                self._take((0.01 if read_sooner else 0.05) + (0.0 if knows_schema else 0.04))
                for _ in range(body["max_tokens"]):
                    text = "word " if schema == "null" else "{"
                    yield _sse({"choices": [{"delta": {"content": text}}], "usage": None})
                    await asyncio.sleep(0)
                    self._take(0.008 if known["itl"] else 0.01)
                cached = {"cached_tokens": 64 if known["usage"] else 0}
                usage = {"prompt_tokens": 90, "prompt_tokens_details": cached}
                timings = {"read": 1 if known["diagnostics"] else 90}
                yield _sse({"choices": [], "usage": usage, "timings": timings})
                yield b"data: [DONE]\n\n"
            finally:
                self._running -= 1

        headers = {"x-request-id": f"{self._draw.getrandbits(64):x}", "date": str(self.now)}
        return httpx.Response(200, headers=headers, content=stream())

    def _respond(self, tenant: str, body: dict[str, Any]) -> httpx.Response:
        if body["max_output_tokens"] < 16:
            return _error(400, "max_output_tokens: at least 16")
        self._take(0.02)
        previous = body.get("previous_response_id")
        if previous is not None and not self._knows("errors", tenant, previous):
            return _error(404, f"there is no {previous}")
        document: dict[str, Any] = {"id": f"resp_{self._draw.getrandbits(128):032x}"}
        self._sent[tenant].add(document["id"])
        compared = body.get("prompt_cache_options", {}).get("comparison_response_id")
        if compared is not None:
            found = self._knows("diagnostics", tenant, compared)
            kind = "cache_miss" if found else "comparison_response_not_found"
            document["prompt_cache_diagnostics"] = {"type": kind}
        return httpx.Response(200, json=document)

    def _show(self, tenant: str, name: str) -> httpx.Response:
        self._take(0.002)
        if not self._knows("ids", tenant, name):
            return _error(404, f"there is no {name}")
        return httpx.Response(200, json={"id": name})


def _sse(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> httpx.Response:
    document = {"error": {"message": message, "code": None}}
    return httpx.Response(status, json=document, headers=headers)
