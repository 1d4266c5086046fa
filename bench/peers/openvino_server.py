"""OpenVINO GenAI's continuous batching behind the chat completions that `bench peers` asks for.

`python openvino_server.py MODEL_FOLDER --port PORT`, in an environment with openvino-genai,
starlette and uvicorn; of this project it needs nothing else. The pipeline has a process of its own:
in one process with the server its tokens come in bursts. It does not tell how many tokens of a
prompt it has found in its cache.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_FIELDS: Final = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "ignore_eos",
        "stream",
        "stream_options",
    }
)
_HALF_A_CHARACTER: Final = "\ufffd"
_MAX_RUNNING: Final = 32


@dataclass(frozen=True)
class _Start:
    """A request, for the process of the pipeline."""

    number: int
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    ignore_eos: bool


@dataclass(frozen=True)
class _Cancel:
    """Nobody reads the answer of that request any more."""

    number: int


@dataclass(frozen=True)
class _Delta:
    """Tokens of a request's answer; whether these are the last."""

    number: int
    tokens: list[int]
    ended: bool


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="a model exported by optimum-cli, with its tokenizer")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kv-gib", type=int, default=2, help="memory of the KV cache, GiB")
    options = parser.parse_args()
    here, there = multiprocessing.Pipe()
    given = (options.folder, options.kv_gib, there)
    pipeline = multiprocessing.get_context("spawn").Process(target=_run, args=given, daemon=True)
    pipeline.start()
    there.close()
    server = _Server(options.folder, here)
    uvicorn.run(server.app(), host=options.host, port=options.port, log_level="warning")


def _run(folder: str, kv_gib: int, connection: Connection) -> None:
    """The pipeline's process: a step, and what came of it, until the server is gone."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = kv_gib
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = _MAX_RUNNING
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU")
    running: dict[int, Any] = {}
    while True:
        try:
            # Without anything to compute it waits for a message.
            while connection.poll(0 if running else None):
                message = connection.recv()
                if isinstance(message, _Start):
                    prompt = openvino.Tensor(np.array([message.prompt], dtype=np.int64))
                    config = _generation(genai, message)
                    running[message.number] = pipeline.add_request(message.number, prompt, config)
                elif message.number in running:
                    running.pop(message.number).cancel()
            pipeline.step()
            connection.send([_read(genai, number, running) for number in list(running)])
        except (EOFError, OSError):
            return


def _generation(genai: Any, start: _Start) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = start.max_tokens
    config.ignore_eos = start.ignore_eos
    if start.temperature > 0:
        config.do_sample = True
        config.temperature = start.temperature
        config.top_p = start.top_p
        config.rng_seed = start.number
    return config


def _read(genai: Any, number: int, running: dict[int, Any]) -> _Delta:
    """What a request has new; one that has ended is `running` no more."""
    handle = running[number]
    # Asked first: what comes between the two questions is read by the second.
    ended = handle.get_status() != genai.GenerationStatus.RUNNING
    tokens: list[int] = []
    if handle.can_read():
        for output in handle.read().values():
            tokens += output.generated_ids
    if ended:
        del running[number]
    return _Delta(number, tokens, ended)


class _Text:
    """Tokens to text, piece by piece; half a character waits for its other half."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._said = 0
        """Characters of the text of `_ids` that have been given out."""

    def add(self, tokens: list[int]) -> str:
        """The text that these tokens add."""
        self._ids += tokens
        text: str = self._tokenizer.decode(self._ids)
        if text.endswith(_HALF_A_CHARACTER):
            return ""
        piece = text[self._said :]
        # The last tokens are decoded again with the next, since a word's space depends on them.
        self._ids = self._ids[-4:]
        self._said = len(self._tokenizer.decode(self._ids))
        return piece


class _Server:
    """Chat completions over the pipeline at the other end of a pipe."""

    def __init__(self, folder: str, connection: Connection) -> None:
        import openvino_genai as genai

        self._tokenizer = genai.Tokenizer(folder)
        self._connection = connection
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Queue[_Delta]] = {}

    def app(self) -> Starlette:
        """The ASGI application."""
        route = Route("/v1/chat/completions", self._completions, methods=["POST"])
        return Starlette(routes=[route], lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def listen() -> None:
            while True:
                try:
                    deltas = self._connection.recv()
                except (EOFError, OSError):  # nothing can be answered without the pipeline
                    loop.call_soon_threadsafe(sys.exit, "the pipeline has ended")
                    return
                loop.call_soon_threadsafe(self._deal, deltas)

        threading.Thread(target=listen, daemon=True).start()
        yield

    def _deal(self, deltas: list[_Delta]) -> None:
        for delta in deltas:
            if (answer := self._answers.get(delta.number)) is not None:
                answer.put_nowait(delta)

    async def _completions(self, request: Request) -> Response:
        body = await request.json()
        if unknown := body.keys() - _FIELDS:
            message = f"not known here: {', '.join(sorted(unknown))}"
            return JSONResponse({"error": {"message": message}}, 400)
        text = self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        prompt = encoded.input_ids.data[0].tolist()
        start = _Start(
            number=next(self._numbers),
            prompt=prompt,
            max_tokens=body["max_tokens"],
            temperature=body.get("temperature", 1.0),
            top_p=body.get("top_p", 1.0),
            ignore_eos=body.get("ignore_eos", False),
        )
        if body.get("stream"):
            return StreamingResponse(self._events(start), media_type="text/event-stream")
        text, tokens = "", 0
        async with aclosing(self._answer(start)) as answer:
            async for piece, count in answer:
                text, tokens = text + piece, tokens + count
        choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        return JSONResponse({"choices": [choice], "usage": _usage(prompt, tokens)})

    async def _events(self, start: _Start) -> AsyncIterator[str]:
        tokens = 0
        async with aclosing(self._answer(start)) as answer:
            async for piece, count in answer:
                tokens += count
                if piece:
                    choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
                    yield _event({"choices": [choice]})
        yield _event({"choices": [], "usage": _usage(start.prompt, tokens)})
        yield "data: [DONE]\n\n"

    async def _answer(self, start: _Start) -> AsyncGenerator[tuple[str, int], None]:
        """Text, and of how many tokens, as it comes; broken off with the reader."""
        deltas = self._answers[start.number] = asyncio.Queue()
        text = _Text(self._tokenizer)
        ended = False
        self._connection.send(start)
        try:
            while not ended:
                delta = await deltas.get()
                ended = delta.ended
                yield text.add(delta.tokens) if delta.tokens else "", len(delta.tokens)
        finally:
            del self._answers[start.number]
            if not ended:
                self._connection.send(_Cancel(start.number))


def _usage(prompt: list[int], tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": tokens,
        "total_tokens": len(prompt) + tokens,
    }


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


if __name__ == "__main__":
    main()
