"""What requests take of Redis: commands and processor time, of a real service on a real server."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import httpx
import redis

from bench.common.service import Service, served_model
from bench.registry import BenchError
from bench.service.null_engine import null_service
from engine.model.weights import DEFAULT_MODEL
from tenants.at_rest.pepper import Peppers
from tenants.storage.connection import open_redis
from tenants.storage.embedded import EmbeddedStore
from tenants.store import TenantStore

_AT_ONCE: Final = 8
_WARMING: Final = 20
_STEP_MICROSECONDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StoreLoad:
    """Of a `POST /v1/responses` that is stored, and what does not depend on requests."""

    commands: float
    """That the service sends: a script is one."""
    server_us: float
    """Processor time of the server."""
    kib_per_tenant: float


def measure_store(requests: int, tenants: int) -> StoreLoad:
    """So many requests, whose answers are a token each; and so many tenants that are made."""
    with tempfile.TemporaryDirectory(prefix="partywall-bench-") as folder, ExitStack() as stack:
        store = stack.enter_context(EmbeddedStore(Path(folder, "store")))
        raw = stack.enter_context(redis.Redis.from_url(store.url))
        kib = asyncio.run(_kib_per_tenant(store.url, raw, tenants))
        raw.flushall()
        options = ["--model", DEFAULT_MODEL, "--redis-url", store.url]
        service, _ = stack.enter_context(null_service(options))
        load = _Load(service)
        load.run(_WARMING)
        before = _processor_seconds(raw)
        load.run(requests)
        server_us = 1e6 * (_processor_seconds(raw) - before) / requests
        with _counting_commands(store.url) as commands:
            load.run(requests)
        return StoreLoad(len(commands) / requests, server_us, kib)


class _Load:
    """A tenant, and a client that asks for it."""

    def __init__(self, service: Service) -> None:
        self._url = f"{service.url}/v1/responses"
        self._key = service.create_tenant("tenant")
        self._body = {
            "model": served_model(service.url, self._key),
            "input": "How old is the wall?",
            "max_output_tokens": 16,
            "seed": _STEP_MICROSECONDS,
        }

    def run(self, requests: int) -> None:
        """Some at a time. Raises `BenchError` for one that is refused."""
        asyncio.run(self._run(requests))

    async def _run(self, requests: int) -> None:
        headers = {"authorization": f"Bearer {self._key}"}
        turns = asyncio.Semaphore(_AT_ONCE)

        async def ask() -> None:
            async with turns:
                answer = await client.post(self._url, json=self._body)
            if answer.status_code != 200:
                raise BenchError(f"a request was answered {answer.status_code}: {answer.text}")

        async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as client:
            await asyncio.gather(*(ask() for _ in range(requests)))


@contextmanager
def _counting_commands(url: str) -> Iterator[list[str]]:
    """What clients send to the server within the block; not what scripts call."""
    end = uuid4().hex
    commands: list[str] = []
    begun = threading.Event()

    def listen() -> None:
        with redis.Redis.from_url(url) as watching, watching.monitor() as monitor:
            begun.set()
            while end not in (told := monitor.next_command())["command"]:
                if told["client_type"] != "lua":
                    commands.append(told["command"])

    listening = threading.Thread(target=listen, name="monitor")
    listening.start()
    begun.wait()
    try:
        yield commands
    finally:
        with redis.Redis.from_url(url) as client:
            client.echo(end)
        listening.join()


def _processor_seconds(raw: redis.Redis) -> float:
    used = raw.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


async def _kib_per_tenant(url: str, raw: redis.Redis, tenants: int) -> float:
    """Memory of a tenant with one key, and of the audit's line about it."""
    guarded = await open_redis(url)
    try:
        store = TenantStore(guarded, Peppers(secrets.token_bytes(32)))
        before = raw.info("memory")["used_memory"]
        for number in range(tenants):
            await store.create_tenant(f"tenant-{number}")
        return float(raw.info("memory")["used_memory"] - before) / tenants / 1024
    finally:
        await guarded.close()
