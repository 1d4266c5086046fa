from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from engine.weights import DEFAULT_MODEL, resolve_model

PROMPT_TOKENS = 100
CACHED_TOKENS = 75


@dataclass
class Peer:
    """A foreign server of the OpenAI API: no metrics, no admin, answers of a known shape."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    fail_every: int = 0
    short_by: int = 0

    def note(self, headers: Any, body: dict[str, Any]) -> bool:
        """Remember a request; returns whether it is one to refuse."""
        self.bodies.append(body)
        self.keys.append(headers.get("authorization", ""))
        return bool(self.fail_every) and len(self.bodies) % self.fail_every == 0

    async def words(self, count: int) -> AsyncIterator[str]:
        """An answer, a word at a time."""
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(count - self.short_by):
                await asyncio.sleep(0.001)
                yield "word "
        finally:
            self.running -= 1

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        if self.note(request.headers, body):
            return JSONResponse({"error": {"message": "no"}}, 503)

        async def stream() -> AsyncIterator[str]:
            yield _sse({"choices": [{"delta": {"role": "assistant"}}], "usage": None})
            async for word in self.words(body["max_tokens"]):
                yield _sse({"choices": [{"delta": {"content": word}}], "usage": None})
            usage = {
                "prompt_tokens": PROMPT_TOKENS,
                "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
                "completion_tokens": body["max_tokens"] - self.short_by,
            }
            yield _sse({"choices": [], "usage": usage})
            yield "data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def responses(self, socket: WebSocket) -> None:
        await socket.accept()
        async for body in socket.iter_json():
            if self.note(socket.headers, body):
                await socket.send_json({"type": "error", "error": {"message": "no"}})
                continue
            async for word in self.words(body["max_output_tokens"]):
                await socket.send_json({"type": "response.output_text.delta", "delta": word})
            usage = {
                "input_tokens": PROMPT_TOKENS,
                "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
                "output_tokens": body["max_output_tokens"] - self.short_by,
            }
            await socket.send_json({"type": "response.incomplete", "response": {"usage": usage}})


def _sse(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", peer.completions, methods=["POST"]),
            WebSocketRoute("/v1/responses", peer.responses),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(1000):
        if server.started:
            break
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    peer.url = f"http://127.0.0.1:{port}"
    yield peer
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, with a real tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(DEFAULT_MODEL))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
