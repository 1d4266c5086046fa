"""Several answers to one request: `n`, `best_of` and beams on `POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import openai
import pytest

from tests.app.conftest import MODEL, World, eventually

HELLO = [{"role": "user", "content": "hello"}]
TEXTS = ["a", "bcd", "ef"]
BEAMS = {"num_beams": 4}


async def complete(world: World, extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    arguments = {"model": MODEL, "messages": HELLO, "extra_body": extra or {}, **fields}
    return await world.client().chat.completions.create(**arguments)


async def by_index(stream: Any) -> dict[int, list[Any]]:
    """The choices of all chunks, by their index."""
    choices = defaultdict(list)
    async for chunk in stream:
        for choice in chunk.choices:
            choices[choice.index].append(choice)
    return dict(choices)


def text(chunks: list[Any]) -> str:
    return "".join(chunk.delta.content or "" for chunk in chunks)


def counted(world: World, kind: str) -> float:
    registry = world.app.state.service.metrics.registry
    return registry.get_sample_value(f"partywall_{kind}_total", {"tenant": "acme"}) or 0.0


async def test_n_answers_come_from_one_prompt_each_with_an_end_of_its_own(world: World) -> None:
    world.engine.answers = TEXTS
    completion = await complete(world, n=3, max_tokens=3, seed=7)
    (request,) = world.engine.requests
    assert (request.num_sequences, request.sampling.seed) == (3, 7)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.message.content for choice in completion.choices] == TEXTS
    assert [choice.finish_reason for choice in completion.choices] == ["stop", "length", "stop"]
    assert all("score" not in choice.model_fields_set for choice in completion.choices)
    usage = completion.usage
    assert usage.prompt_tokens == len(request.prompt)
    assert usage.completion_tokens == 2 + 3 + 3
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


async def test_chunks_carry_the_index_of_their_answer_and_each_answer_ends_once(
    world: World,
) -> None:
    world.engine.answers = TEXTS
    stream = await complete(world, n=3, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    choices = defaultdict(list)
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        choices[choice.index].append(choice)
    assert [text(choices[index]) for index in range(3)] == TEXTS
    for mine in choices.values():
        assert mine[0].delta.role == "assistant"
        assert [choice.finish_reason for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == sum(map(len, TEXTS)) + 3
    ends = [c.choices[0].index for c in chunks[:-1] if c.choices[0].finish_reason]
    assert ends == [0, 2, 1], "an answer's end is told when it comes"


async def test_a_stop_string_ends_its_answer_at_the_engine_and_no_other(world: World) -> None:
    world.engine.answers = ["one STOP two", "three"]
    choices = await by_index(await complete(world, n=2, stream=True, stop="STOP"))
    assert [text(choices[index]) for index in (0, 1)] == ["one ", "three"]
    assert [choices[index][-1].finish_reason for index in (0, 1)] == ["stop", "stop"]
    (request,) = world.engine.requests
    assert world.engine.aborted_lines == []  # the other one had ended before
    world.engine.answers = ["one STOP two", "three, four, five"]
    completion = await complete(world, n=2, stop="STOP")
    assert [choice.message.content for choice in completion.choices] == [
        "one ",
        "three, four, five",
    ]
    request = world.engine.requests[-1]
    assert world.engine.aborted_lines == [(request.request_id, 0)]
    assert completion.usage.completion_tokens == len("one STOP") + len("three, four, five") + 1


async def test_logprobs_belong_to_their_answer(world: World) -> None:
    world.engine.answers = TEXTS
    completion = await complete(world, n=3, logprobs=True)
    for choice, expected in zip(completion.choices, TEXTS, strict=True):
        assert "".join(entry.token for entry in choice.logprobs.content) == expected
    choices = await by_index(await complete(world, n=3, logprobs=True, stream=True))
    for index, expected in enumerate(TEXTS):
        entries = [entry for c in choices[index] if c.logprobs for entry in c.logprobs.content]
        assert "".join(entry.token for entry in entries) == expected


async def test_best_of_answers_with_the_likeliest_a_token_and_counts_all(world: World) -> None:
    world.engine.answers = ["worst", "second", "best", "third"]
    world.engine.logprobs = [-3.0, -1.0, -0.1, -2.0]
    completion = await complete(world, {"best_of": 4}, n=2)
    assert world.engine.requests[-1].num_sequences == 4
    assert [choice.message.content for choice in completion.choices] == ["best", "second"]
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert all(choice.logprobs is None for choice in completion.choices)
    assert completion.usage.completion_tokens == len("worstsecondbestthird") + 4
    completion = await complete(world, {"best_of": 4}, logprobs=True)
    (choice,) = completion.choices
    assert "".join(entry.token for entry in choice.logprobs.content) == "best"


async def test_a_mean_counts_a_token_not_an_answer(world: World) -> None:
    world.engine.answers = ["short", "much longer than the other"]
    world.engine.logprobs = [-1.0, -0.9]
    completion = await complete(world, {"best_of": 2})
    assert completion.choices[0].message.content == "much longer than the other"


async def test_best_of_no_more_than_n_changes_nothing(world: World) -> None:
    world.engine.answers = TEXTS
    choices = await by_index(await complete(world, {"best_of": 3}, n=3, stream=True))
    assert [text(choices[index]) for index in range(3)] == TEXTS
    assert world.engine.requests[-1].sampling.logprobs is None


async def test_beams_come_best_first_with_their_scores(world: World) -> None:
    world.engine.answers = TEXTS
    extra = {**BEAMS, "length_penalty": 0.5, "early_stopping": "never"}
    completion = await complete(world, extra, n=3, temperature=0)
    (request,) = world.engine.requests
    assert request.num_sequences == 1
    assert request.sampling.temperature == 0
    assert request.beam is not None
    beam = (request.beam.num_beams, request.beam.num_return)
    assert beam == (4, 3)
    assert (request.beam.length_penalty, request.beam.early_stopping) == (0.5, None)
    assert [choice.message.content for choice in completion.choices] == TEXTS
    assert [choice.score for choice in completion.choices] == [-0.25, -0.5, -0.75]
    assert [choice.finish_reason for choice in completion.choices] == ["stop"] * 3


@pytest.mark.parametrize(("given", "meant"), [({}, False), ({"early_stopping": True}, True)])
async def test_what_a_beam_search_is_not_told_is_as_in_transformers(
    world: World, given: dict[str, Any], meant: bool
) -> None:
    await complete(world, {**BEAMS, **given})
    beam = world.engine.requests[-1].beam
    assert beam is not None
    assert (beam.num_return, beam.length_penalty, beam.early_stopping) == (1, 1.0, meant)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": "2"}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"length_penalty": 1.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"num_beams": 1}, "num_beams"),
        ({"num_beams": 17}, "num_beams"),
        ({**BEAMS, "n": 5}, "n"),
        ({**BEAMS, "stream": True}, "stream"),
        ({**BEAMS, "temperature": 0.5}, "temperature"),
        ({**BEAMS, "best_of": 1}, "best_of"),
        ({**BEAMS, "top_p": 0.9}, "top_p"),
        ({**BEAMS, "top_k": 5}, "top_k"),
        ({**BEAMS, "min_p": 0.1}, "min_p"),
        ({**BEAMS, "seed": 0}, "seed"),
        ({**BEAMS, "presence_penalty": 1}, "presence_penalty"),
        ({**BEAMS, "frequency_penalty": 1}, "frequency_penalty"),
        ({**BEAMS, "repetition_penalty": 1.1}, "repetition_penalty"),
        ({**BEAMS, "logit_bias": {"5": 1}}, "logit_bias"),
        ({**BEAMS, "logprobs": True}, "logprobs"),
        ({**BEAMS, "stop": "x"}, "stop"),
        ({**BEAMS, "length_penalty": 11}, "length_penalty"),
        ({**BEAMS, "early_stopping": "later"}, "early_stopping"),
        ({**BEAMS, "early_stopping": 1}, "early_stopping"),
    ],
    ids=str,
)
async def test_what_does_not_go_together_is_refused_by_name(
    world: World, extra: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, extra)
    assert refused.value.param == param
    assert not world.engine.requests


@pytest.mark.parametrize("field", ["n", "best_of", "num_beams", "length_penalty"])
async def test_responses_have_one_answer_and_know_none_of_these_fields(
    world: World, field: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await world.client().responses.create(model=MODEL, input="x", extra_body={field: 2})
    assert (refused.value.code, refused.value.param) == ("unknown_parameter", field)


async def test_a_failure_fails_all_answers(world: World) -> None:
    world.engine.answers = TEXTS
    world.engine.die_after = 2
    with pytest.raises(openai.InternalServerError, match="the engine died"):
        await complete(world, n=3)
    with pytest.raises(openai.APIError, match="the engine died"):
        await by_index(await complete(world, n=3, stream=True))


async def test_a_search_that_is_given_up_is_paid_for_as_far_as_it_came(world: World) -> None:
    world.engine.hold_after = 3
    search = asyncio.create_task(complete(world, {**BEAMS, "n": 2}))
    await eventually(lambda: bool(world.engine.holding))
    search.cancel()
    await eventually(lambda: not world.engine.active)
    await world.metered("acme", 1, len(world.engine.requests[-1].prompt) + 3 * 4)


async def test_a_reader_that_leaves_ends_all_answers(world: World) -> None:
    world.engine.hold_after = 2
    stream = await complete(world, n=4, stream=True)
    await anext(aiter(stream))
    await eventually(lambda: bool(world.engine.holding))
    await stream.close()
    await eventually(lambda: not world.engine.active)


@pytest.mark.parametrize(
    ("extra", "lines", "output"),
    [
        ({"n": 3}, 3, 4 + 3 + 2),
        ({"n": 1, "best_of": 4}, 4, 4 + 3 + 2 + 5),
        ({**BEAMS, "n": 2}, 4, 4 * 4),
    ],
    ids=["n", "best_of", "beams"],
)
async def test_every_line_is_reserved_and_the_request_is_metered_as_one(
    world: World, extra: dict[str, Any], lines: int, output: int
) -> None:
    await world.limit("acme", tokens_per_minute=1000, concurrent_streams=lines)
    world.engine.answers = ["abc", "de", "f", "ghij"]
    client = world.client().chat.completions.with_raw_response
    for attempt in range(3):  # each reserves far more than a third of the bucket
        answer = await client.create(
            model=MODEL, messages=HELLO, max_tokens=200, stream=False, extra_body=extra
        )
        prompt = len(world.engine.requests[-1].prompt)
        if attempt == 0:
            remaining = int(answer.headers["x-ratelimit-remaining-tokens"])
            assert remaining == 1000 - prompt - lines * 200
        assert answer.parse().usage.completion_tokens == output
    await world.metered("acme", 3, 3 * (prompt + output))
    await world.limit("acme", concurrent_streams=lines - 1)
    with pytest.raises(openai.RateLimitError, match="never"):
        await client.create(model=MODEL, messages=HELLO, stream=False, extra_body=extra)
    assert counted(world, "prompt_tokens") == 3 * prompt
    assert counted(world, "generation_tokens") == 3 * output


@pytest.mark.parametrize(
    ("extra", "param"),
    [({"n": 4}, "n"), ({"n": 2, "best_of": 4}, "best_of"), (BEAMS, "num_beams")],
    ids=str,
)
async def test_more_lines_than_run_at_once_are_refused_by_name(
    world: World, extra: dict[str, Any], param: str
) -> None:
    world.engine.max_running_sequences = 3
    with pytest.raises(openai.BadRequestError, match="3 at most") as refused:
        await complete(world, extra)
    assert refused.value.param == param
    await complete(world, n=3)


async def test_sixteen_answers_of_no_given_length_fit_the_pool(world: World) -> None:
    await complete(world, n=16)
    request, info = world.engine.requests[-1], world.engine.info
    blocks = -(-(len(request.prompt) + request.sampling.max_tokens) // info.block_size)
    shared = len(request.prompt) // info.block_size
    assert shared + 16 * (blocks - shared) <= info.num_blocks < shared + 16 * (blocks + 1 - shared)
    await world.limit("acme", blocks=shared + 16 * 2)
    await complete(world, n=16)
    assert world.engine.requests[-1].sampling.max_tokens == (shared + 2) * 16 - len(request.prompt)


@pytest.mark.parametrize("n", [1, 2, 4])
async def test_an_answer_is_as_long_as_all_of_them_can_be_at_once(world: World, n: int) -> None:
    await world.limit("acme", tokens_per_minute=1000, output_tokens=400)
    await complete(world, n=n)
    request = world.engine.requests[-1]
    assert request.sampling.max_tokens == min(400, (1000 - len(request.prompt)) // n)
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, n=n, max_tokens=401)
    assert refused.value.param == "max_tokens"


async def test_a_prompt_is_scored_once_for_all_answers(world: World) -> None:
    completion = await complete(world, {"prompt_logprobs": 2}, n=2)
    (request,) = world.engine.requests
    first, *scores = completion.prompt_logprobs
    assert first is None
    assert [next(iter(one)) for one in scores] == list(map(str, request.prompt[1:]))
    assert {len(one) for one in scores} <= {2, 3}
    assert scores[0][str(request.prompt[1])]["rank"] == 21
    assert completion.usage.prompt_tokens == len(request.prompt)
    assert not hasattr(await complete(world), "prompt_logprobs")
    for fields in ({"stream": True}, {"extra": {"prompt_logprobs": 21}}):
        with pytest.raises(openai.BadRequestError) as refused:
            await complete(world, **{"extra": {"prompt_logprobs": 1}} | fields)
        assert refused.value.param == "prompt_logprobs"
