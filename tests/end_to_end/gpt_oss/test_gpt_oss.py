"""gpt-oss from its published layout to answers over both APIs: all is really generated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import pytest
from openai import AsyncOpenAI
from transformers import PreTrainedTokenizerFast

from bench.common.service import Service, running_service
from tests.end_to_end.gpt_oss.conversations import (
    ADVICE,
    ANSWER,
    ANSWER_IN_JSON,
    ANSWERS,
    ARGUMENTS,
    COUNSEL,
    FUNCTION,
    HARD,
    INSTRUCTIONS,
    LOOKING,
    PARAMETERS,
    QUESTION,
    RESULT,
    SHAPED,
    SHAPING,
    TELLING,
    THANKS,
    continued_prompts,
    examples,
    first_prompt,
    rendered_prompts,
)
from tests.end_to_end.gpt_oss.folder import harmony_tokenizer, write_folder

BLOCK = 16
CHAT_TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
TOOL: dict[str, Any] = {"type": "function", "strict": False, **FUNCTION}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    bare = harmony_tokenizer([])
    return harmony_tokenizer([prompt + answer for prompt, answer in examples(bare)])


@pytest.fixture(scope="module")
def service(
    tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("gpt-oss")
    write_folder(folder, tokenizer, examples(tokenizer))
    options = [
        "--model",
        str(folder),
        "--block-size",
        str(BLOCK),
        "--kv-memory",
        "64MiB",
    ]
    with running_service([*options, "--max-context-tokens", "1024"]) as service:
        yield service


@pytest.fixture
def client(service: Service, request: pytest.FixtureRequest) -> AsyncOpenAI:
    """Of a tenant of the test's own: nothing is in its cache yet."""
    name = re.sub("[^a-z]+", "-", request.node.name.lower())[:40].strip("-")
    return AsyncOpenAI(
        base_url=f"{service.url}/v1", api_key=service.create_tenant(name), max_retries=0
    )


@pytest.fixture
async def model(client: AsyncOpenAI) -> str:
    return (await client.models.list()).data[0].id


def ids_of(tokenizer: PreTrainedTokenizerFast, *texts: str) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def told_of(tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> list[tuple[int, int]]:
    """Tokens of each turn's prompt, and how many of them are in the cache: what it begins with of
    the blocks that an earlier turn has filled, with all of that turn but its last token.

    A result goes on behind all that was said, where the template writes it the same way. Behind a
    final answer the template leaves out what was reasoned, and nothing is found from there on.
    """
    whole = ids_of(tokenizer, *prompts)
    known: list[list[int]] = []
    told = []
    for prompt, answer in zip(whole, ids_of(tokenizer, *ANSWERS), strict=True):
        shared = max((num_common(one, prompt) for one in known), default=0)
        told.append((len(prompt), shared))
        computed = (prompt + answer)[:-1]
        known.append(computed[: len(computed) // BLOCK * BLOCK])
    return told


def num_common(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def reasoning_of(response: Any) -> list[str]:
    return [one.content[0].text for one in response.output if one.type == "reasoning"]


async def test_responses_go_on_through_a_call(
    client: AsyncOpenAI, model: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    options: Any = {"model": model, "temperature": 0, "tools": [TOOL], "max_output_tokens": 200}
    first = await client.responses.create(
        **options, instructions=INSTRUCTIONS, input=QUESTION, reasoning={"effort": "medium"}
    )
    assert [one.type for one in first.output] == ["reasoning", "function_call"]
    assert reasoning_of(first) == [LOOKING]
    call = first.output[1]
    assert (call.name, call.arguments) == ("get_weather", ARGUMENTS)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    second = await client.responses.create(**options, input=[result], previous_response_id=first.id)
    third = await client.responses.create(**options, input=THANKS, previous_response_id=second.id)
    for response, thought, text in ((second, TELLING, ANSWER), (third, COUNSEL, ADVICE)):
        assert [one.type for one in response.output] == ["reasoning", "message"]
        assert reasoning_of(response) == [thought]
        assert response.output_text == text
    turns = [first, second, third]
    assert [one.status for one in turns] == ["completed"] * 3
    used = [one.usage for one in turns]
    found = [(one.input_tokens, one.input_tokens_details.cached_tokens) for one in used]
    assert found == told_of(tokenizer, continued_prompts(tokenizer))
    sizes = [one.output_tokens for one in used]
    assert sizes == [len(one) for one in ids_of(tokenizer, *ANSWERS)]


async def test_a_chat_goes_on_through_a_call(
    client: AsyncOpenAI, model: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": QUESTION},
    ]
    found = []

    async def ask() -> Any:
        completion = await client.chat.completions.create(
            model=model, messages=messages, tools=[CHAT_TOOL], temperature=0, max_tokens=200
        )
        assert completion.usage is not None
        assert completion.usage.prompt_tokens_details is not None
        cached = completion.usage.prompt_tokens_details.cached_tokens
        found.append((completion.usage.prompt_tokens, cached))
        [choice] = completion.choices
        messages.append(choice.message.model_dump(exclude_none=True))
        return choice

    called = await ask()
    assert called.finish_reason == "tool_calls"
    assert (called.message.content, called.message.reasoning_content) == (None, LOOKING)
    [call] = called.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", ARGUMENTS)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
    for thought, text in ((TELLING, ANSWER), (COUNSEL, ADVICE)):
        said = await ask()
        assert said.finish_reason == "stop"
        assert (said.message.content, said.message.reasoning_content) == (text, thought)
        messages.append({"role": "user", "content": THANKS})
    assert found == told_of(tokenizer, rendered_prompts(tokenizer))


async def test_a_streamed_response_tells_channels_apart(client: AsyncOpenAI, model: str) -> None:
    options: Any = {"model": model, "temperature": 0, "tools": [TOOL], "stream": True}
    told: dict[str, list[str]] = {}
    last: Any = None
    request: dict[str, Any] = {"instructions": INSTRUCTIONS, "input": QUESTION}
    for _ in range(2):
        async for event in await client.responses.create(**options, **request):
            if event.type.endswith(".delta"):
                told.setdefault(event.type, []).append(event.delta)
            last = event
        assert last.type == "response.completed"
        result = {"type": "function_call_output", "output": RESULT}
        result["call_id"] = getattr(last.response.output[1], "call_id", "")
        request = {"input": [result], "previous_response_id": last.response.id}
    assert {name: "".join(parts) for name, parts in told.items()} == {
        "response.reasoning_text.delta": LOOKING + TELLING,
        "response.function_call_arguments.delta": ARGUMENTS,
        "response.output_text.delta": ANSWER,
    }
    assert all(len(parts) > 2 for parts in told.values())


async def test_a_streamed_chat_tells_channels_apart(client: AsyncOpenAI, model: str) -> None:
    reasoning, arguments, names = [], [], []
    stream = await client.chat.completions.create(
        model=model,
        messages=[
            {"role": "developer", "content": INSTRUCTIONS},
            {"role": "user", "content": QUESTION},
        ],
        tools=[CHAT_TOOL],
        temperature=0,
        stream=True,
    )
    async for chunk in stream:
        for choice in chunk.choices:
            assert not choice.delta.content
            reasoning.append(getattr(choice.delta, "reasoning_content", None) or "")
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                names.append(call.function.name or "")
                arguments.append(call.function.arguments or "")
    assert "".join(reasoning) == LOOKING
    assert ("".join(names), "".join(arguments)) == ("get_weather", ARGUMENTS)
    assert sum(map(bool, reasoning)) > 2
    assert sum(map(bool, arguments)) > 2


@pytest.mark.parametrize(("effort", "thought"), [("medium", LOOKING), ("high", HARD)])
async def test_an_effort_reaches_the_model(
    client: AsyncOpenAI,
    model: str,
    tokenizer: PreTrainedTokenizerFast,
    effort: Any,
    thought: str,
) -> None:
    response = await client.responses.create(
        model=model, temperature=0, tools=[TOOL], instructions=INSTRUCTIONS, input=QUESTION,
        reasoning={"effort": effort},
    )  # fmt: skip
    assert reasoning_of(response) == [thought]
    assert response.usage is not None
    assert [response.usage.input_tokens] == [
        len(one) for one in ids_of(tokenizer, first_prompt(tokenizer, effort))
    ]
    completion = await client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": QUESTION},
        ],
        tools=[CHAT_TOOL],
        temperature=0,
        reasoning_effort=effort,
    )
    assert getattr(completion.choices[0].message, "reasoning_content", "") == thought


async def test_an_answer_is_held_to_a_schema_behind_what_is_reasoned(
    client: AsyncOpenAI, model: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    """In the model's own words, of which the schema leaves it all."""
    schema: Any = {"name": "place", "strict": False, "schema": PARAMETERS}
    response = await client.responses.create(
        model=model, temperature=0, instructions=INSTRUCTIONS, input=QUESTION,
        text={"format": {"type": "json_schema", **schema}},
    )  # fmt: skip
    completion = await client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": QUESTION},
        ],
        temperature=0,
        response_format={"type": "json_schema", "json_schema": schema},
    )
    [choice] = completion.choices
    assert reasoning_of(response) == [SHAPING]
    assert getattr(choice.message, "reasoning_content", "") == SHAPING
    assert [response.status, choice.finish_reason] == ["completed", "stop"]
    for text in (response.output_text, choice.message.content or ""):
        assert text == SHAPED
    assert response.usage is not None
    assert completion.usage is not None
    [said] = ids_of(tokenizer, ANSWER_IN_JSON)
    sizes = response.usage.output_tokens, completion.usage.completion_tokens
    assert sizes == (len(said), len(said))


async def test_a_call_that_has_to_be_is_held_to_its_schema(client: AsyncOpenAI, model: str) -> None:
    options: Any = {"model": model, "temperature": 0, "instructions": INSTRUCTIONS}
    held = await client.responses.create(
        **options, input=QUESTION, tools=[TOOL | {"strict": True}], tool_choice="required"
    )
    [call] = [one for one in held.output if one.type == "function_call"]
    assert json.loads(call.arguments) == json.loads(ARGUMENTS)


async def test_a_custom_tool_takes_a_text_that_follows_its_grammar(
    client: AsyncOpenAI, model: str
) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": r"(<\|call\|>|[ab] ?){2,5}"}
    tool: Any = {"type": "custom", "name": "write", "format": grammar}
    response = await client.responses.create(
        model=model,
        input=QUESTION,
        tools=[tool],
        tool_choice={"type": "custom", "name": "write"},
        max_output_tokens=200,
        temperature=0,
    )
    *reasoned, called = response.output
    assert {item.type for item in reasoned} <= {"reasoning"}
    assert (called.type, response.status) == ("custom_tool_call", "completed")
    assert re.fullmatch(grammar["definition"], called.input)
