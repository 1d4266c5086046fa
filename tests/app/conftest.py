from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest
import uvicorn
from openai import AsyncOpenAI, OpenAI
from starlette.applications import Starlette
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from app.limits import ServiceLimits
from app.service import create_app
from tenants.connection import GuardedRedis, open_redis
from tenants.conversations import Conversations
from tenants.embedded import EmbeddedStore
from tenants.records import SystemPrompt, Tenant
from tenants.store import TenantStore
from tenants.system_prompts import SystemPrompts
from tests.app.scripted_engine import ScriptedEngine

MODEL = "acme/Scripted-1"
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
    app: Starlette
    engine: ScriptedEngine
    server: EmbeddedStore
    redis: GuardedRedis
    prompts: SystemPrompts
    tenants: dict[str, Tenant]
    keys: dict[str, str]
    clients: list[AsyncOpenAI] = field(default_factory=list)

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
        os.kill(self.server.server_pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server.server_pid, signal.SIGCONT)

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
def limits() -> ServiceLimits:
    return ServiceLimits()


@contextlib.asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """The app behind a real uvicorn on a free port of the loopback interface."""
    config = uvicorn.Config(app, port=0, log_level="warning", ws="websockets-sansio")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
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


@pytest.fixture
async def world(
    engine: ScriptedEngine,
    tokenizer: PreTrainedTokenizerBase,
    limits: ServiceLimits,
    store_server: EmbeddedStore,
) -> AsyncIterator[World]:
    redis = await open_redis(store_server.url, timeout_seconds=0.5)
    await redis.execute("FLUSHALL")
    store, prompts, conversations = (
        TenantStore(redis, b"pepper" * 6),
        SystemPrompts(redis),
        Conversations(redis),
    )
    tenants, keys = {}, {}
    for name in ("acme", "umbra"):
        tenants[name], keys[name] = await store.create_tenant(name)
    app = create_app(engine, store, prompts, conversations, tokenizer, MODEL, limits)
    async with serving(app) as base_url:
        world = World(base_url, app, engine, store_server, redis, prompts, tenants, keys)
        yield world
        for client in world.clients:
            await client.close()
    await redis.close()
