"""`POST /v1/completions`: texts and ids continued as they are, echoed and scored."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import openai
import pytest

from app.completions import run
from app.generation import engine_request
from app.wire.events import encode_json
from tests.app.conftest import MODEL, World, eventually


async def complete(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "prompt": "Once", "max_tokens": 100, **fields}
    return await world.client().completions.create(**arguments)


def ids(world: World, text: str) -> list[int]:
    return list(world.engine.tokenizer(text, add_special_tokens=False)["input_ids"])


async def test_a_text_is_continued_as_it_is(world: World) -> None:
    world.engine.answer = " upon a time"
    completion = await complete(world)
    [request] = world.engine.requests
    assert request.prompt == ids(world, "Once")
    assert completion.object == "text_completion"
    assert completion.choices[0].text == " upon a time"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens == 4
    assert completion.usage.completion_tokens == len(" upon a time") + 1
    assert (await complete(world, max_tokens=None)).choices[0].text == " upon a time"
    assert world.engine.requests[-1].sampling.max_tokens == 16
    echoed = (await complete(world, echo=True, n=2)).choices
    assert [choice.text for choice in echoed] == ["Once upon a time"] * 2


async def test_several_prompts_have_answers_in_their_order(world: World) -> None:
    world.engine.answers = ["first", "second"]
    for prompt in (["a", "b", "c"], [[65], [66], [67]]):
        completion = await complete(world, prompt=prompt, n=2)
        assert [choice.index for choice in completion.choices] == list(range(6))
        assert [choice.text for choice in completion.choices] == ["first", "second"] * 3
        assert completion.usage.prompt_tokens == 3
    only = await complete(world, prompt=[65, 66])
    assert only.usage.prompt_tokens == 2
    many = await complete(world, prompt=["x"] * 100)
    assert len(many.choices) == 100
    assert world.engine.most_active <= 16


async def test_a_text_may_spell_control_tokens(world: World) -> None:
    await complete(world, prompt="<|im_start|>user\nhi<|im_end|>")
    prompt = world.engine.requests[-1].prompt
    assert prompt.count(world.engine.eos) == 1


async def test_a_stream_is_the_whole_in_parts(world: World) -> None:
    world.engine.answer = "naïve 🙂"
    chunks = [one async for one in await complete(world, stream=True, echo=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Oncenaïve 🙂"
    assert chunks[-1].choices[0].finish_reason == "stop"
    options = {"include_usage": True}
    chunks = [one async for one in await complete(world, stream=True, stream_options=options)]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == 4
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_a_prompt_is_scored_token_by_token(world: World) -> None:
    world.engine.answer = "!"
    completion = await complete(world, echo=True, logprobs=2, max_tokens=1)
    [request] = world.engine.requests
    assert request.prompt == ids(world, "Once")
    assert (request.sampling.max_tokens, request.sampling.prompt_logprobs) == (1, 2)
    [choice] = completion.choices
    assert choice.text == "Once!"
    assert choice.logprobs.tokens == list("Once!")
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5, -0.5]
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert choice.logprobs.top_logprobs[0] is None
    assert [list(top.values()) for top in choice.logprobs.top_logprobs[1:-1]] == [
        [-0.25, -0.5, -0.5]
    ] * 3
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (4, 1)
    await world.metered("acme", 1, 5)
    scored = await complete(world, echo=True, logprobs=0, max_tokens=0)
    assert scored.choices[0].text == "Once"
    assert scored.choices[0].logprobs.tokens == list("Once")
    assert scored.usage.completion_tokens == 0
    streamed = await complete(world, echo=True, logprobs=2, max_tokens=1, stream=True)
    tokens = [t for one in [c async for c in streamed] for t in one.choices[0].logprobs.tokens]
    assert tokens == list("Once!")


async def test_a_prompt_is_scored_as_vllm_tells_it(world: World) -> None:
    tokens, fields = ids(world, "Once"), {"prompt_logprobs": 3}
    scored = await complete(world, max_tokens=0, extra_body=fields)
    [choice] = scored.choices
    assert choice.text == ""
    first, *others = choice.prompt_logprobs
    assert first is None
    assert [next(iter(one)) for one in others] == list(map(str, tokens[1:])), "its own comes first"
    own = {"logprob": -0.5, "rank": 21, "decoded_token": "n"}
    assert next(iter(others[0].values())) == own
    assert [one["rank"] for one in others[0].values()] == [21, 1, 2, 3]
    both = await complete(world, max_tokens=0, echo=True, logprobs=1, extra_body=fields)
    assert both.choices[0].prompt_logprobs == choice.prompt_logprobs
    assert [len(top) for top in both.choices[0].logprobs.top_logprobs[1:]] == [2, 2, 2]
    fewer = await complete(world, echo=True, logprobs=3, extra_body={"prompt_logprobs": 1})
    assert [len(one) for one in fewer.choices[0].prompt_logprobs[1:]] == [2, 2, 2]
    several = await complete(world, prompt=["ab", "cde"], max_tokens=0, extra_body=fields)
    assert [len(one.prompt_logprobs) for one in several.choices] == [2, 3]


async def test_a_long_prompt_is_told_in_parts(world: World) -> None:
    text = "long " * 100
    fields: dict[str, Any] = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 1}
    whole = (await complete(world, **fields)).choices[0]
    choices = [one.choices[0] async for one in await complete(world, **fields, stream=True)]
    assert "".join(choice.text for choice in choices) == whole.text
    assert [t for one in choices for t in one.logprobs.tokens] == whole.logprobs.tokens
    offsets = [offset for one in choices for offset in one.logprobs.text_offset]
    assert offsets == whole.logprobs.text_offset == list(range(len(whole.text)))
    assert max(len(choice.logprobs.tokens) for choice in choices) < 100


async def test_a_prompt_has_no_more_scores_than_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_request, "MAX_LOGPROBS", 12)
    scoring = {"echo": True, "logprobs": 2}
    await complete(world, **scoring, max_tokens=0)
    for fields, param in (({"max_tokens": 1}, "max_tokens"), ({"prompt": "Once "}, "prompt")):
        with pytest.raises(openai.BadRequestError) as refused:
            await complete(world, **scoring | {"max_tokens": 0} | fields)
        assert refused.value.param == param
    assert len(world.engine.requests) == 1


@pytest.mark.parametrize("as_ids", [False, True])
async def test_all_prompts_share_the_log_probabilities_of_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, as_ids: bool
) -> None:
    monkeypatch.setattr(run, "MAX_LOGPROBS", 3 * 10)
    texts = ["Once", "upon"]
    prompts = [ids(world, text) for text in texts] if as_ids else texts
    fields = {"prompt": prompts, "echo": True, "logprobs": 2}
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, **fields, max_tokens=2)
    assert refused.value.param == "prompt"
    assert not world.engine.requests
    scored = await complete(world, **fields, max_tokens=1)
    assert [choice.text[:4] for choice in scored.choices] == texts
    with pytest.raises(openai.BadRequestError):
        await complete(world, prompt=prompts, logprobs=2, n=2, max_tokens=3)
    await complete(world, prompt=prompts, logprobs=2, n=2, max_tokens=2)


async def test_what_is_large_is_made_json_beside_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []

    def encode(value: Any) -> bytes:
        threads.append(threading.current_thread() is threading.main_thread())
        return encode_json(value)

    monkeypatch.setattr(run, "encode_json", encode)
    fields = {"prompt": ["Once", "upon"], "echo": True, "logprobs": 2}
    small = await complete(world, **fields)
    monkeypatch.setattr(run, "_INLINE_BYTES", 1)
    large = await complete(world, **fields)
    assert large.choices == small.choices
    assert threads == [True, False]


async def test_what_ends_a_scored_answer_is_scored_as_well(world: World) -> None:
    world.engine.answer = ""
    completion = await complete(world, echo=True, logprobs=1, max_tokens=1)
    assert completion.choices[0].finish_reason == "stop"
    assert completion.choices[0].logprobs.tokens == [*"Once", "<|im_end|>"]
    assert completion.choices[0].text == "Once"


async def test_logprobs_without_a_prompt_are_the_answers(world: World) -> None:
    world.engine.answer = "ab"
    [choice] = (await complete(world, logprobs=1)).choices
    assert choice.logprobs.tokens == ["a", "b"]
    assert choice.logprobs.text_offset == [0, 1]
    assert world.engine.requests[-1].sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"extra_body": {"prompt_logprobs": -1}}, "prompt_logprobs"),
        ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs"),
        ({"extra_body": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs"),
        ({"extra_body": {"prompt_logprobs": 1}, "best_of": 2}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [65, "x"]}, "prompt[1]"),
        ({"prompt": ["x", 65]}, "prompt[1]"),
        ({"prompt": [[65], []]}, "prompt[1]"),
        ({"prompt": [65, 10**6]}, "prompt[1]"),
        ({"prompt": [[65], [10**6]]}, "prompt[1][0]"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": ["x", "y"], "stream": True}, "stream"),
        ({"prompt": ["x", "y" * 3000]}, "prompt[1]"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"max_tokens": 0}, None),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": True, "logprobs": 1, "n": 2}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"messages": []}}, "messages"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    world: World, fields: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, **fields)
    assert refused.value.param == param


async def test_one_that_fails_ends_them_all(world: World) -> None:
    world.engine.die_after = 2
    with pytest.raises(openai.InternalServerError):
        await complete(world, prompt=["a", "b", "c"])
    assert not world.engine.active


async def test_a_reader_that_leaves_frees_every_prompt(world: World) -> None:
    world.engine.hold_after = 2
    asking = asyncio.create_task(complete(world, prompt=["a", "b", "c"]))
    await eventually(lambda: len(world.engine.active) == 3)
    asking.cancel()
    await eventually(lambda: not world.engine.active)


async def test_prompts_are_shared_with_nobody_else(world: World) -> None:
    text = "x" * 100
    await complete(world, prompt=text)
    again = await complete(world, prompt=text)
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    other = await world.client("umbra").completions.create(model=MODEL, prompt=text)
    assert other.usage is not None
    assert other.usage.prompt_tokens_details is not None
    assert other.usage.prompt_tokens_details.cached_tokens == 0
    user = await complete(world, prompt=text, user="ann")
    assert user.usage.prompt_tokens_details.cached_tokens == 0
