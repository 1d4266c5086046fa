"""A foreign server of the OpenAI API: `python -m tests.bench.stand_in PORT`, or inside a test."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

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

    def server(self, port: int = 0) -> uvicorn.Server:
        """Serves it, once it runs."""
        app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.completions, methods=["POST"]),
                WebSocketRoute("/v1/responses", self.responses),
            ]
        )
        return uvicorn.Server(
            uvicorn.Config(app, port=port, log_level="error", ws="websockets-sansio")
        )


def _sse(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


if __name__ == "__main__":
    Peer().server(int(sys.argv[1])).run()
