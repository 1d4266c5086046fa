from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import uvicorn
from openai import AsyncOpenAI, OpenAI
from starlette.applications import Starlette
from tenants.records import Tenant
from tenants.store import Conversations, TenantStore
from tenants.system_prompts import SystemPrompts
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from app.limits import ServiceLimits
from app.service import create_app
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
    store: TenantStore
    prompts: SystemPrompts
    conversations: Conversations
    tenants: dict[str, Tenant]
    keys: dict[str, str]
    clients: list[AsyncOpenAI] = field(default_factory=list)

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


@pytest.fixture
async def world(
    engine: ScriptedEngine, tokenizer: PreTrainedTokenizerBase, limits: ServiceLimits
) -> AsyncIterator[World]:
    store, prompts, conversations = TenantStore(), SystemPrompts(), Conversations()
    tenants = {name: Tenant(id=name, secret=name.encode() * 8) for name in ("acme", "umbra")}
    keys = {name: f"pw_{name}.secret" for name in tenants}
    store.keys = {keys[name]: tenant for name, tenant in tenants.items()}
    app = create_app(engine, store, prompts, conversations, tokenizer, MODEL, limits)
    async with serving(app) as base_url:
        world = World(base_url, app, engine, store, prompts, conversations, tenants, keys)
        yield world
        for client in world.clients:
            await client.close()
