from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import msgspec
import pytest
import uvicorn.server
from openai import AsyncOpenAI, OpenAI
from starlette.applications import Starlette
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from app.admin.door import Door
from app.admin.token import AdminToken
from app.assembly.server import Listener, Server, bind
from app.assembly.service import create_admin_app, create_app
from app.background.webhooks import Webhook
from app.prompt.chat_template import ChatTemplate
from app.prompt.sight import Eyes
from app.settings import Settings, load_settings
from app.stores import Stores
from app.transport.bounds import Bounds, ConnectionBounds
from app.workers import Workers
from tenants.at_rest.pepper import Peppers
from tenants.prompts.system_prompts import SystemPrompts
from tenants.records import SystemPrompt, Tenant, TenantLimits
from tenants.storage.connection import GuardedRedis, open_redis
from tenants.storage.embedded import EmbeddedStore
from tenants.store import CACHE_SECONDS, FLUSH_GRACE_SECONDS, TenantStore
from tenants.usage.prices import NO_PRICES, PriceList
from tenants.usage.usage import DayUsage
from tests.app.scripted_engine import ScriptedEngine

if TYPE_CHECKING:
    from app.generation.tracing import Tracing

MODEL = "acme/Scripted-1"
ADMIN_TOKEN = "pwadmin_for-tests-only"
PEPPER = Peppers(b"pepper" * 6)
STALL_SECONDS = 2.0
"""How long a call waits for a stalled store; a busy machine alone must not take that long."""
CHATML = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' and loop.first and not add_generation_prompt %}"
    "{{ raise_exception('no') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token: a tokenizer that needs no training, with ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def chat_template(tokenizer: PreTrainedTokenizerBase, context_tokens: int = 2048) -> ChatTemplate:
    """The tokenizer's template, for prompts of so many tokens."""
    return ChatTemplate(tokenizer, Workers(), context_tokens)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return byte_tokenizer()


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


@dataclass
class World:
    """A running service and everything behind it."""

    base_url: str
    admin_url: str
    app: Starlette
    engine: ScriptedEngine
    redis: GuardedRedis
    stores: Stores
    tenants: dict[str, Tenant]
    keys: dict[str, str]
    server_pid: int = 0
    clients: list[AsyncOpenAI] = field(default_factory=list)

    @property
    def prompts(self) -> SystemPrompts:
        return self.stores.prompts

    async def limit(self, tenant_id: str, **limits: int | None) -> None:
        """Give a tenant these limits, and no others."""
        self.tenants[tenant_id] = await self.stores.tenants.update_tenant(
            tenant_id,
            lambda tenant: msgspec.structs.replace(tenant, limits=TenantLimits(**limits)),
        )

    async def metered(self, tenant_id: str, requests: int, tokens: int) -> list[DayUsage]:
        """Wait until the usage in the store says so; it must never say more."""
        async with asyncio.timeout(20):
            while True:
                days = await self.stores.usage.read(tenant_id, date.min, date.max)
                total = sum(day.prompt_tokens + day.output_tokens for day in days)
                counted = sum(day.requests for day in days)
                assert (counted, total) <= (requests, tokens)
                if (counted, total) == (requests, tokens):
                    return days
                await asyncio.sleep(0.05)

    async def register(self, tenant_id: str, name: str, text: str) -> SystemPrompt:
        """Put a prompt, and wait until the service has warmed it."""
        prompt = await self.prompts.put(tenant_id, name, text)
        async with asyncio.timeout(10):
            while await self.prompts.newest_index(tenant_id, prompt) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return prompt

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """A store that does not answer any more."""
        os.kill(self.server_pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server_pid, signal.SIGCONT)

    @property
    def ws_url(self) -> str:
        return self.base_url.replace("http", "ws") + "/v1/responses"

    def headers(self, tenant: str = "acme") -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[tenant]}"}

    def client(self, tenant: str = "acme") -> AsyncOpenAI:
        url = f"{self.base_url}/v1"
        self.clients.append(AsyncOpenAI(base_url=url, api_key=self.keys[tenant], max_retries=0))
        return self.clients[-1]

    def sync_client(self, tenant: str = "acme") -> OpenAI:
        url = f"{self.base_url}/v1"
        return OpenAI(base_url=url, api_key=self.keys[tenant], max_retries=0)


@pytest.fixture
def limits() -> Bounds:
    return Bounds()


@functools.cache
def _settings() -> Settings:
    """Those of every server here: to read them takes as long as all else that a world needs."""
    return load_settings()


@pytest.fixture(scope="session", autouse=True)
def _servers_end_without_a_pause() -> Iterator[None]:
    """uvicorn gives connections a tenth of a second to end before it looks: where a thousand tests
    end a server each, and hardly one has a connection left, that is minutes.
    """

    async def soon(seconds: float) -> None:
        await asyncio.sleep(seconds / 50)

    with pytest.MonkeyPatch.context() as patch:
        names = vars(asyncio) | {"sleep": soon}
        patch.setattr(uvicorn.server, "asyncio", SimpleNamespace(**names))
        yield


@contextlib.asynccontextmanager
async def serving(*apps: Starlette) -> AsyncIterator[list[str]]:
    """The apps behind the product's server, each on a free port of the loopback interface."""
    sockets = [bind("127.0.0.1", 0) for _ in apps]

    async def at_once(_: asyncio.Event | None = None) -> None:
        pass

    server = Server(
        [
            Listener(socket=socket, app=app, bounds=ConnectionBounds())
            for socket, app in zip(sockets, apps, strict=True)
        ],
        _settings(),
        on_ready=at_once,
        drain=at_once,
    )
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield [f"http://127.0.0.1:{socket.getsockname()[1]}" for socket in sockets]
    finally:
        await server.shutdown()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; it must within ten seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition is anything, not an event
            await asyncio.sleep(0.005)


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path_factory.mktemp("store")) as server:
        yield server


@contextlib.asynccontextmanager
async def living(
    engine: ScriptedEngine,
    limits: Bounds,
    redis_url: str,
    cache_seconds: float = CACHE_SECONDS,
    flush_grace_seconds: float = FLUSH_GRACE_SECONDS,
    prices: PriceList = NO_PRICES,
    webhook: Webhook | None = None,
    tracing: Tracing | None = None,
    eyes: Eyes | None = None,
) -> AsyncIterator[World]:
    """A world over the store at `redis_url`; what it knows of tenants is `cache_seconds` old."""
    redis = await open_redis(redis_url, timeout_seconds=STALL_SECONDS)
    await redis.execute("FLUSHALL")
    tenant_store = TenantStore(
        redis, PEPPER, cache_seconds=cache_seconds, flush_grace_seconds=flush_grace_seconds
    )
    stores = Stores.over(redis, PEPPER, tells_budgets=webhook is not None)
    stores = dataclasses.replace(stores, tenants=tenant_store)
    tenants, keys = {}, {}
    for name in ("acme", "umbra"):
        tenants[name], keys[name] = await stores.tenants.create_tenant(name)
    app = create_app(
        engine,
        stores,
        engine.tokenizer,
        MODEL,
        limits,
        prices=prices,
        webhook=webhook,
        tracing=tracing,
        eyes=eyes,
    )
    door = Door(AdminToken.of(ADMIN_TOKEN), stores.operator_tokens)
    admin_app = create_admin_app(app.state.service, door)
    async with serving(app, admin_app) as (base_url, admin_url):
        world = World(base_url, admin_url, app, engine, redis, stores, tenants, keys)
        yield world
        for client in world.clients:
            await client.close()
    await redis.close()


@pytest.fixture
def prices() -> PriceList:
    return NO_PRICES


@pytest.fixture
def webhook() -> Webhook | None:
    return None


@pytest.fixture
def tracing() -> Tracing | None:
    return None


@pytest.fixture
def eyes() -> Eyes | None:
    return None


@pytest.fixture
async def world(
    engine: ScriptedEngine,
    limits: Bounds,
    store_server: EmbeddedStore,
    prices: PriceList,
    webhook: Webhook | None,
    tracing: Tracing | None,
    eyes: Eyes | None,
) -> AsyncIterator[World]:
    async with living(
        engine,
        limits,
        store_server.url,
        prices=prices,
        webhook=webhook,
        tracing=tracing,
        eyes=eyes,
    ) as world:
        world.server_pid = store_server.server_pid
        yield world


@pytest.fixture
async def admin(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """An operator of the world."""
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    async with httpx.AsyncClient(
        base_url=f"{world.admin_url}/admin", headers=headers, trust_env=False, timeout=20
    ) as client:
        yield client
