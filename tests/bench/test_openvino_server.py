"""OpenVINO GenAI behind chat completions, with a pipeline of the same shape in its place."""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from bench.peers import openvino_server

ENDLESS = 1_000_000


class Status(Enum):
    RUNNING = 0
    FINISHED = 1
    CANCEL = 3


class Tokenizer:
    """A token is a byte."""

    def __init__(self, _: str) -> None: ...

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool
    ) -> str:
        assert add_generation_prompt
        return "|".join(message["content"] for message in messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        assert not add_special_tokens
        ids = np.array([list(text.encode())])
        return SimpleNamespace(input_ids=SimpleNamespace(data=ids))

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")


class Handle:
    def __init__(self, prompt: list[int], config: SimpleNamespace) -> None:
        self.config = config
        self.status = Status.RUNNING
        self._answer = itertools.islice(itertools.cycle(prompt), config.max_new_tokens)
        self._left = config.max_new_tokens
        self._new: list[int] = []

    def step(self) -> None:
        self._new.append(next(self._answer))
        self._left -= 1
        if not self._left:
            self.status = Status.FINISHED

    def get_status(self) -> Status:
        return self.status

    def can_read(self) -> bool:
        return bool(self._new)

    def read(self) -> dict[int, SimpleNamespace]:
        new, self._new = self._new, []
        return {0: SimpleNamespace(generated_ids=new)}

    def cancel(self) -> None:
        self.status = Status.CANCEL


class Pipeline:
    """Answers with the prompt, over and over, a token of every request a step."""

    made: list[Pipeline]

    def __init__(self, _folder: str, scheduler: SimpleNamespace, device: str) -> None:
        assert (scheduler.enable_prefix_caching, device) == (True, "CPU")
        self.handles: list[Handle] = []
        self.made.append(self)

    def add_request(self, _: int, prompt: Any, config: SimpleNamespace) -> Handle:
        self.handles.append(Handle(prompt[0].tolist(), config))
        return self.handles[-1]

    def step(self) -> None:
        time.sleep(0.0005)
        for handle in self.handles:
            if handle.status is Status.RUNNING:
                handle.step()


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> list[Pipeline]:
    found: list[Pipeline] = []
    monkeypatch.setattr(Pipeline, "made", found, raising=False)
    genai, openvino = ModuleType("openvino_genai"), ModuleType("openvino")
    vars(genai).update(
        Tokenizer=Tokenizer,
        ContinuousBatchingPipeline=Pipeline,
        SchedulerConfig=SimpleNamespace,
        GenerationConfig=lambda: SimpleNamespace(do_sample=False),
        GenerationStatus=Status,
    )
    vars(openvino)["Tensor"] = lambda array: array
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    monkeypatch.setitem(sys.modules, "openvino", openvino)
    return found


@pytest.fixture
def client(pipelines: list[Pipeline]) -> Iterator[TestClient]:
    here, there = multiprocessing.Pipe()
    running = threading.Thread(target=openvino_server._run, args=("folder", 1, there), daemon=True)
    running.start()
    with TestClient(openvino_server._Server("folder", here).app()) as client:
        yield client
    there.close()


def body(text: str, max_tokens: int, **given: object) -> dict[str, object]:
    message = {"role": "user", "content": text}
    return {"model": "m", "messages": [message], "max_tokens": max_tokens} | given


def post(client: TestClient, document: dict[str, object]) -> list[dict[str, Any]]:
    answer = client.post("/v1/chat/completions", json=document)
    lines = answer.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def said(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1]]


def test_an_answer_is_streamed_character_by_character(client: TestClient) -> None:
    chunks = post(client, body("né🎉", 14, stream=True, temperature=0, ignore_eos=True))
    assert "".join(said(chunks)) == "né🎉né🎉"
    assert "\ufffd" not in "".join(said(chunks))
    assert chunks[-1] == {
        "choices": [],
        "usage": {"prompt_tokens": 7, "completion_tokens": 14, "total_tokens": 21},
    }


def test_an_answer_can_come_whole(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json=body("ready?", 3, temperature=0)).json()
    assert answer["choices"][0]["message"]["content"] == "rea"
    assert answer["usage"]["completion_tokens"] == 3


def test_the_pipeline_is_told_how_to_sample(client: TestClient, pipelines: list[Pipeline]) -> None:
    post(client, body("x", 1, stream=True, temperature=0, ignore_eos=True))
    post(client, body("x", 1, stream=True, temperature=0.5, top_p=0.9))
    post(client, body("x", 1, stream=True, temperature=0.5, top_p=0.9))
    greedy, sampled, other = (handle.config for handle in pipelines[0].handles)
    assert not greedy.do_sample
    assert (greedy.ignore_eos, sampled.ignore_eos) == (True, False)
    assert (sampled.do_sample, sampled.temperature, sampled.top_p) == (True, 0.5, 0.9)
    assert sampled.rng_seed != other.rng_seed


def test_a_field_that_is_not_known_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json=body("x", 1, min_p=0.1))
    assert answer.status_code == 400
    assert "min_p" in answer.json()["error"]["message"]


async def test_an_answer_that_nobody_reads_is_broken_off(pipelines: list[Pipeline]) -> None:
    here, there = multiprocessing.Pipe()
    threading.Thread(target=openvino_server._run, args=("folder", 1, there), daemon=True).start()
    server = openvino_server._Server("folder", here)
    start = openvino_server._Start(0, [65], ENDLESS, 0.0, 1.0, True)
    async with server.app().router.lifespan_context(server.app()):
        answer = server._answer(start)
        assert (await anext(answer))[0] == "A"
        await answer.aclose()
    deadline = time.monotonic() + 10
    while pipelines[0].handles[0].status is Status.RUNNING:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
