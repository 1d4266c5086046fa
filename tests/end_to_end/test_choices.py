"""Several answers from one prompt of the real model: whole, streamed, and when the engine dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from bench.common.service import Service, served_model
from tests.end_to_end.test_exactness import metric
from tests.end_to_end.test_failures import engine_process, is_idle, until

MAX_TOKENS = 16
SAMPLED = {"temperature": 0.9, "seed": 5}


@pytest.fixture
async def client(service: Service, api_key: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{service.url}/v1", api_key=api_key, max_retries=0) as client:
        yield client


@pytest.fixture
def arguments(service: Service, api_key: str) -> dict[str, Any]:
    question = {"role": "user", "content": "Tell me a fact about the sea."}
    model = served_model(service.url, api_key)
    return {"model": model, "messages": [question], "max_tokens": MAX_TOKENS}


def texts(completion: Any) -> list[str]:
    return [choice.message.content for choice in completion.choices]


async def test_greedy_answers_are_all_the_same_one(
    client: AsyncOpenAI, arguments: dict[str, Any]
) -> None:
    alone = await client.chat.completions.create(**arguments, temperature=0)
    several = await client.chat.completions.create(**arguments, temperature=0, n=3)
    assert texts(several) == texts(alone) * 3
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens
    assert several.usage.completion_tokens == 3 * alone.usage.completion_tokens


async def test_seeded_answers_outlive_their_engine_and_the_first_is_that_of_one(
    client: AsyncOpenAI, arguments: dict[str, Any], service: Service
) -> None:
    create = client.chat.completions.create
    forks = metric(service, "partywall_engine_forks_total")
    undisturbed = texts(await create(**arguments, **SAMPLED, n=4))
    assert metric(service, "partywall_engine_forks_total") == forks + 3
    assert len(set(undisturbed)) == 4
    assert texts(await create(**arguments, **SAMPLED)) == undisturbed[:1]
    streamed = [""] * 4
    engine = engine_process(service)
    half = sum(map(len, undisturbed)) // 2
    async for chunk in await create(**arguments, **SAMPLED, n=4, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
        if engine.is_running() and sum(map(len, streamed)) >= half:
            engine.kill()
    assert streamed == undisturbed
    assert engine_process(service).pid != engine.pid
    assert metric(service, "partywall_engine_invariant_violations_total") == 0


async def test_best_of_returns_the_likeliest_of_what_n_returns(
    client: AsyncOpenAI, arguments: dict[str, Any]
) -> None:
    create = client.chat.completions.create
    all_five = await create(
        **arguments, **SAMPLED, n=5, logprobs=True, extra_body={"ignore_eos": True}
    )

    def mean(choice: Any) -> float:
        logprobs = [entry.logprob for entry in choice.logprobs.content]
        return sum(logprobs) / len(logprobs)

    ranked = sorted(all_five.choices, key=mean, reverse=True)
    best = await create(**arguments, **SAMPLED, n=2, extra_body={"best_of": 5, "ignore_eos": True})
    assert texts(best) == [choice.message.content for choice in ranked[:2]]
    assert best.usage.completion_tokens == all_five.usage.completion_tokens


async def test_beams_are_the_hypotheses_of_generate(
    client: AsyncOpenAI,
    arguments: dict[str, Any],
    service: Service,
    tokenizer: Tokenizer,
    reference: PreTrainedModel,
) -> None:
    ids = tokenizer.apply_chat_template(
        arguments["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    expected = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        num_beams=4,
        num_return_sequences=3,
        length_penalty=0.5,
        early_stopping=True,
        return_dict_in_generate=True,
        output_scores=True,
    )
    searching = {"num_beams": 4, "length_penalty": 0.5, "early_stopping": True}
    found = await client.chat.completions.create(**arguments, n=3, extra_body=searching)
    answers = expected.sequences[:, ids.shape[1] :]
    assert texts(found) == tokenizer.batch_decode(answers, skip_special_tokens=True)
    scores = [choice.score for choice in found.choices]
    assert scores == pytest.approx(expected.sequences_scores.tolist(), rel=1e-4)
    assert found.usage.completion_tokens == 4 * answers.shape[1]
    await until(lambda: is_idle(service))
