"""`anthropic` for Python: the examples of its README and its helpers, as its guides have them."""

import os
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from pydantic import BaseModel

MODEL = os.environ["SUITE_MODEL"]
client = Anthropic()

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
HELLO = [{"role": "user", "content": "Hello, Claude"}]
ASKED = [{"role": "user", "content": "What is the weather in San Francisco?"}]
RULES = "You are a careful programmer. Read before you write, and run what you have written. " * 20
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a given location",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}


class ContactInfo(BaseModel):
    name: str
    email: str
    demo_requested: bool


@beta_tool
def get_weather(location: str) -> str:
    """Look up the weather of a city.

    Args:
        location: The city, as San Francisco.
    """
    return f"It is sunny in {location}."


def create(**fields: Any) -> Any:
    return client.messages.create(**{"model": MODEL, "max_tokens": 300, "messages": HELLO} | fields)


def test_message() -> None:
    message = create()
    assert message.content[0].text
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens
    assert message.usage.output_tokens


async def test_async() -> None:
    message = await AsyncAnthropic().messages.create(max_tokens=300, messages=HELLO, model=MODEL)
    assert message.content[0].text


def test_streamed_events() -> None:
    events = list(create(stream=True))
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"


def test_stream_helper() -> None:
    with client.messages.stream(max_tokens=300, messages=HELLO, model=MODEL) as stream:
        text = "".join(stream.text_stream)
        assert text == stream.get_final_text()


async def test_stream_helper_async() -> None:
    asked = {"max_tokens": 300, "messages": HELLO, "model": MODEL}
    async with AsyncAnthropic().messages.stream(**asked) as stream:
        text = "".join([one async for one in stream.text_stream])
        message = await stream.get_final_message()
    assert text == message.content[0].text
    assert message.usage.output_tokens


def test_several_turns() -> None:
    turns = [*HELLO]
    for asked in ("Tell me a joke.", "Explain it."):
        turns += [{"role": "assistant", "content": create(messages=turns).content}]
        turns += [{"role": "user", "content": asked}]
    assert create(messages=turns, system="You are a comedian.").content[0].text


def test_stop_sequences_and_sampling() -> None:
    message = create(
        stop_sequences=["e"],
        extra_body={"temperature": 0.5, "top_k": 5},
        metadata={"user_id": "ann"},
        service_tier="auto",
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "e")
    assert create(max_tokens=3).stop_reason == "max_tokens"


def test_a_call_and_its_result() -> None:
    message = create(messages=ASKED, tools=[WEATHER])
    assert message.stop_reason == "tool_use"
    use = next(block for block in message.content if block.type == "tool_use")
    assert isinstance(use.input["location"], str)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "15 degrees"}
    said = {"role": "assistant", "content": message.content}
    answer = create(messages=[*ASKED, said, {"role": "user", "content": [result]}], tools=[WEATHER])
    assert answer.content[0].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_that_has_to_be_called(choice: dict[str, str]) -> None:
    choice |= {"disable_parallel_tool_use": True}
    strict = {**WEATHER, "strict": True}
    strict["input_schema"] = {**WEATHER["input_schema"], "additionalProperties": False}
    message = create(messages=ASKED, tools=[strict], tool_choice=choice)
    assert [block.name for block in message.content if block.type == "tool_use"] == ["get_weather"]


def test_a_streamed_call() -> None:
    with client.messages.stream(
        max_tokens=300, messages=ASKED, model=MODEL, tools=[WEATHER]
    ) as stream:
        partial = "".join(one.partial_json for one in stream if one.type == "input_json")
        message = stream.get_final_message()
    assert partial.startswith("{")
    assert message.content[-1].input["location"] is not None


def test_tool_runner() -> None:
    runner = client.beta.messages.tool_runner(
        max_tokens=300, model=MODEL, tools=[get_weather], messages=ASKED
    )
    first, last = list(runner)
    assert first.stop_reason == "tool_use"
    assert last.content[0].text


def test_streamed_tool_runner() -> None:
    runner = client.beta.messages.tool_runner(
        max_tokens=300, model=MODEL, tools=[get_weather], messages=ASKED, stream=True
    )
    messages = []
    for stream in runner:
        assert [event.type for event in stream][-1] == "message_stop"
        messages.append(stream.get_final_message())
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]


def test_parse() -> None:
    asked = "Extract: John Smith (john@example.com) wants a demo on Tuesday."
    message = client.messages.parse(
        model=MODEL,
        max_tokens=300,
        messages=[{"role": "user", "content": asked}],
        output_format=ContactInfo,
    )
    assert isinstance(message.parsed_output, ContactInfo)


def test_streamed_and_parsed() -> None:
    asked = "Extract: John Smith (john@example.com) wants a demo on Tuesday."
    with client.messages.stream(
        model=MODEL,
        max_tokens=300,
        messages=[{"role": "user", "content": asked}],
        output_format=ContactInfo,
    ) as stream:
        assert isinstance(stream.get_final_message().parsed_output, ContactInfo)


def test_count_tokens() -> None:
    asked = {"messages": ASKED, "tools": [WEATHER], "system": "Be brief."}
    count = client.messages.count_tokens(model=MODEL, **asked)
    usage = create(**asked).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_beta_count_tokens() -> None:
    count = client.beta.messages.count_tokens(
        model=MODEL, messages=HELLO, betas=["token-counting-2024-11-01"]
    )
    assert (
        count.input_tokens == client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
    )


@pytest.mark.parametrize(
    "thinking",
    [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}],
)
def test_thinking_may_be_asked_for_and_told_to_others(thinking: dict[str, Any]) -> None:
    message = create(max_tokens=2000, thinking=thinking)
    assert message.content[-1].text
    said = {"role": "assistant", "content": message.content}
    again = create(max_tokens=2000, thinking=thinking, messages=[*HELLO, said, *HELLO])
    assert again.content[-1].text


def test_thinking_of_others_comes_back() -> None:
    thought = {"type": "thinking", "thinking": "A greeting.", "signature": "of another service"}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": "Hello!"}]}
    assert create(messages=[*HELLO, said, *HELLO]).content[0].text


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_prompt_caching(ttl: str) -> None:
    mark = {"type": "ephemeral", "ttl": ttl}
    system = [{"type": "text", "text": f"{ttl}: {RULES}", "cache_control": mark}]
    first, second = (create(system=system).usage for _ in range(2))
    assert first.cache_creation_input_tokens
    created = first.cache_creation
    assert (created.ephemeral_1h_input_tokens > 0) == (ttl == "1h")
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens
    totals = {
        one.input_tokens + one.cache_creation_input_tokens + one.cache_read_input_tokens
        for one in (first, second)
    }
    assert len(totals) == 1


def test_a_mark_on_the_whole_request() -> None:
    asked = [{"role": "user", "content": f"Once more: {RULES}"}]
    first, second = (
        create(messages=asked, cache_control={"type": "ephemeral"}).usage for _ in range(2)
    )
    assert first.cache_creation_input_tokens
    assert second.cache_read_input_tokens


def test_models_and_raw_responses() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).max_tokens
    raw = client.messages.with_raw_response.create(model=MODEL, max_tokens=4, messages=HELLO)
    assert raw.headers["request-id"]
    assert raw.parse()._request_id == raw.headers["request-id"]


def test_errors() -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        create(messages=[])
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert refused.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        create(model="claude-none")
    with pytest.raises(anthropic.AuthenticationError):
        Anthropic(api_key="pw_wrong.wrong").models.list()


def test_what_is_not_served_is_refused_by_name() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
        create(tools=[search])
    source = {"type": "url", "url": "https://example.com/a.pdf"}
    with pytest.raises(anthropic.BadRequestError, match="document"):
        create(messages=[{"role": "user", "content": [{"type": "document", "source": source}]}])
    with pytest.raises(anthropic.NotFoundError, match="Batches"):
        client.messages.batches.list()


def test_a_picture_is_shown() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    blocks = [
        {"type": "image", "source": source},
        {"type": "text", "text": "Describe this image."},
    ]
    message = create(messages=[{"role": "user", "content": blocks}])
    assert message.content[0].text
    without = create().usage.input_tokens
    assert message.usage.input_tokens > without
