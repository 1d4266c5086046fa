"""LiteLLM: its guides' examples, with the providers "openai" and "hosted_vllm"."""

import os

import litellm
import pytest
from pydantic import BaseModel, Field

NAME = os.environ["SUITE_MODEL"]
HELLO = [{"role": "user", "content": "Hello, how are you?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location"],
        },
    },
}


class CalendarEvent(BaseModel):
    name: str = Field(max_length=40)
    date: str = Field(max_length=20)
    participants: list[str] = Field(max_length=3)


@pytest.fixture(params=["openai", "hosted_vllm"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", os.environ["OPENAI_BASE_URL"])
    monkeypatch.setenv("HOSTED_VLLM_API_KEY", os.environ["OPENAI_API_KEY"])
    return f"{request.param}/{NAME}"


def test_completion(model: str) -> None:
    response = litellm.completion(model=model, messages=HELLO)
    assert response.choices[0].message.content
    assert response.usage.completion_tokens


def test_streamed(model: str) -> None:
    options = {"include_usage": True}
    chunks = list(
        litellm.completion(model=model, messages=HELLO, stream=True, stream_options=options)
    )
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert litellm.stream_chunk_builder(chunks).usage.completion_tokens


async def test_async(model: str) -> None:
    response = await litellm.acompletion(model=model, messages=HELLO, max_tokens=16)
    assert response.choices[0].message.content


def test_tools_and_their_results(model: str) -> None:
    messages = [{"role": "user", "content": "What's the weather like in San Francisco?"}]
    response = litellm.completion(model=model, messages=messages, tools=[WEATHER])
    said = response.choices[0].message
    assert said.tool_calls[0].function.name == "get_current_weather"
    messages.append(said)
    for call in said.tool_calls:
        result = {"tool_call_id": call.id, "role": "tool", "name": call.function.name}
        messages.append({**result, "content": '{"temperature": "10"}'})
    second = litellm.completion(model=model, messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content


def test_required_tool(model: str) -> None:
    response = litellm.completion(
        model=model, messages=HELLO, tools=[WEATHER], tool_choice="required"
    )
    assert response.choices[0].finish_reason == "tool_calls"


def test_response_format(model: str) -> None:
    asked = [{"role": "user", "content": "Alice and Bob go to a fair on Friday: extract it."}]
    response = litellm.completion(model=model, messages=asked, response_format=CalendarEvent)
    assert CalendarEvent.model_validate_json(response.choices[0].message.content)


def test_json_object(model: str) -> None:
    asked = [{"role": "user", "content": "List 2 colours as JSON."}]
    response = litellm.completion(
        model=model, messages=asked, response_format={"type": "json_object"}, max_tokens=200
    )
    assert response.choices[0].message.content.startswith("{")


def test_text_completion() -> None:
    response = litellm.text_completion(
        model=f"text-completion-openai/{NAME}",
        prompt="Say this is a test",
        max_tokens=7,
        api_base=os.environ["OPENAI_BASE_URL"],
    )
    assert response.choices[0].text


def test_responses() -> None:
    response = litellm.responses(model=f"openai/{NAME}", input="Tell me a short story.")
    assert response.output[-1].content[0].text
    events = litellm.responses(model=f"openai/{NAME}", input="Say hello.", stream=True)
    assert [event.type for event in events][-1] == "response.completed"


def test_too_long_a_prompt_is_told_as_such(model: str) -> None:
    messages = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(model=model, messages=messages)


def test_router() -> None:
    parameters = {"model": f"openai/{NAME}", "api_base": os.environ["OPENAI_BASE_URL"]}
    router = litellm.Router([{"model_name": "small", "litellm_params": parameters}])
    assert router.completion(model="small", messages=HELLO).choices[0].message.content
