"""Greedy fp32 answers over the WebSocket are those of `generate()`, whatever else is going on."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from websockets.asyncio.client import ClientConnection, connect

from bench.common.service import Service
from tests.end_to_end.conftest import BLOCK_SIZE

MAX_TOKENS = 24


@pytest.fixture(scope="module")
def expected(questions: list[str], tokenizer: Tokenizer, reference: PreTrainedModel) -> list[str]:
    asked = [[{"role": "user", "content": question}] for question in questions]
    return generated(asked, tokenizer, reference)


def generated(
    conversations: list[list[dict[str, str]]], tokenizer: Tokenizer, reference: PreTrainedModel
) -> list[str]:
    """What `generate()` answers to each conversation; equally long ones go together, unpadded."""
    by_length: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for number, messages in enumerate(conversations):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        by_length[len(prompt)][number] = prompt
    answers: dict[int, str] = {}
    for length, prompts in by_length.items():
        ids = torch.tensor(list(prompts.values()))
        output = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False
        )
        texts = tokenizer.batch_decode(output[:, length:], skip_special_tokens=True)
        answers |= zip(prompts, texts, strict=True)
    return [answers[number] for number in range(len(conversations))]


async def ask(socket: ClientConnection, question: str, **fields: Any) -> dict[str, Any]:
    """One response on a socket of its own; its deltas must join to its text."""
    message = {
        "type": "response.create",
        "input": question,
        "temperature": 0,
        "max_output_tokens": MAX_TOKENS,
    }
    await socket.send(json.dumps(message | fields))
    deltas = ""
    numbers = []
    while True:
        event = json.loads(await socket.recv())
        assert event["type"] != "error", event
        numbers.append(event["sequence_number"])
        if event["type"] == "response.output_text.delta":
            deltas += event["delta"]
        elif event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            response: dict[str, Any] = event["response"]
            assert numbers == list(range(len(numbers)))
            assert response["output"][0]["content"][0]["text"] == deltas
            return response


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


def metric(service: Service, name: str) -> float:
    return service.metrics()[name]


def open_socket(service: Service, api_key: str) -> connect:
    url = service.url.replace("http", "ws", 1) + "/v1/responses"
    return connect(url, additional_headers={"Authorization": f"Bearer {api_key}"}, proxy=None)


def cached_tokens(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


@pytest.mark.scaled
async def test_one_by_one_cold_and_cached(
    service: Service, api_key: str, questions: list[str], expected: list[str]
) -> None:
    async with open_socket(service, api_key) as socket:
        for number, (question, answer) in enumerate(zip(questions, expected, strict=True)):
            user = f"one-{number}"  # a namespace of its own, so that the first time is cold
            cold = await ask(socket, question, safety_identifier=user)
            cached = await ask(socket, question, safety_identifier=user)
            assert [text_of(cold), text_of(cached)] == [answer, answer]
            assert cached_tokens(cold) == 0
            assert cached_tokens(cached) == cached["usage"]["input_tokens"] - 1


def preemptions(service: Service) -> float:
    name = "partywall_num_preemptions_total"
    return sum(metric(service, f'{name}{{kind="{kind}"}}') for kind in ("recompute", "swap"))


@pytest.mark.parametrize("attempt", ["cold", "cached"])
async def test_all_at_once_with_preemption(
    attempt: str, service: Service, api_key: str, questions: list[str], expected: list[str]
) -> None:
    async def one(number: int, question: str) -> dict[str, Any]:
        user = "all" if attempt == "cached" else f"all-{number}"
        async with open_socket(service, api_key) as socket:
            return await ask(socket, question, safety_identifier=user)

    if attempt == "cached":
        await one(0, questions[0])
    before = preemptions(service)
    # So many that they surely preempt each other, though some share a prompt and, where answers are
    # drafted from those that are done, end in a few steps.
    times = 3 if attempt == "cached" else 2
    crowd = questions * times
    answers = await asyncio.gather(*(one(n, question) for n, question in enumerate(crowd)))
    assert [text_of(answer) for answer in answers] == expected * times
    hits = [cached_tokens(answer) >= BLOCK_SIZE for answer in answers]
    assert all(hits) if attempt == "cached" else not any(hits)
    assert preemptions(service) > before


async def test_the_second_turn_hits_everything_that_the_first_has_computed(
    service: Service, api_key: str
) -> None:
    async with open_socket(service, api_key) as socket:
        first = await ask(socket, "Name three rivers.", max_output_tokens=20)
        second = await ask(
            socket, "And three lakes?", previous_response_id=first["id"], max_output_tokens=8
        )
    known = first["usage"]["total_tokens"]
    # The last token is only computed where it completes a block.
    assert cached_tokens(second) == known - (known % BLOCK_SIZE != 0)
