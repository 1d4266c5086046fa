"""`openai` for Python: the examples of its README and its guides, with helpers of every kind."""

import base64
import os
import re
from enum import StrEnum

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

MODEL = os.environ["SUITE_MODEL"]
client = OpenAI()

PIRATE = "You are a coding assistant that talks like a pirate."
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
QUESTION = "How do I check if a Python object is an instance of a class?"


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


class Column(StrEnum):
    id = "id"
    status = "status"
    shipped_at = "shipped_at"


class Query(BaseModel):
    """A query of orders."""

    columns: list[Column]
    limit: int


MATH_GRAMMAR = """
start: expr
expr: term (SP ADD SP term)* -> add
| term
term: INT (SP MUL SP INT)~0..2
SP: " "
ADD: "+"
MUL: "*"
INT: /[1-9][0-9]?/
"""
MATH_FORMAT = {"syntax": "lark", "definition": MATH_GRAMMAR}
MATH = {
    "type": "custom",
    "name": "math_exp",
    "description": "Creates valid mathematical expressions",
    "format": {"type": "grammar", **MATH_FORMAT},
}
CODE = {
    "type": "custom",
    "name": "code_exec",
    "description": "Executes arbitrary Python code.",
}
EXPRESSION = r"[1-9][0-9]?( [+*] [1-9][0-9]?)*"


class GetWeather(BaseModel):
    city: str
    country: str


EVENT = [
    {"role": "system", "content": "Extract the event information."},
    {"role": "user", "content": "Alice and Bob are going to a science fair on Friday."},
]


def test_responses() -> None:
    response = client.responses.create(model=MODEL, instructions=PIRATE, input=QUESTION)
    assert response.output_text


def test_chat() -> None:
    messages = [
        {"role": "developer", "content": "Talk like a pirate."},
        {"role": "user", "content": QUESTION},
    ]
    completion = client.chat.completions.create(model=MODEL, messages=messages)
    assert completion.choices[0].message.content


async def test_async() -> None:
    asked = "Explain disestablishmentarianism to a smart five year old."
    response = await AsyncOpenAI().responses.create(model=MODEL, input=asked)
    assert response.output_text


def test_streamed_responses() -> None:
    asked = "Write a one-sentence bedtime story about a unicorn."
    events = list(client.responses.create(model=MODEL, input=asked, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_responses_stream_helper() -> None:
    with client.responses.stream(model=MODEL, input=QUESTION) as stream:
        text = "".join(one.delta for one in stream if one.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text


def test_chat_stream_helper() -> None:
    asked = [{"role": "user", "content": "Say this is a test"}]
    with client.chat.completions.stream(model=MODEL, messages=asked) as stream:
        text = "".join(one.delta for one in stream if one.type == "content.delta")
        assert text == stream.get_final_completion().choices[0].message.content


def test_two_turns_by_previous_response() -> None:
    first = client.responses.create(model=MODEL, input="tell me a joke")
    second = client.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        input=[{"role": "user", "content": "explain why this is funny."}],
    )
    assert second.output_text


def test_two_turns_by_the_output_itself() -> None:
    history = [{"role": "user", "content": "tell me a joke"}]
    response = client.responses.create(model=MODEL, input=history, store=False)
    history += response.output
    history.append({"role": "user", "content": "tell me another"})
    assert client.responses.create(model=MODEL, input=history, store=False).output_text


def test_responses_parse() -> None:
    response = client.responses.parse(model=MODEL, input=EVENT, text_format=CalendarEvent)
    assert isinstance(response.output_parsed, CalendarEvent)


def test_chat_parse() -> None:
    completion = client.chat.completions.parse(
        model=MODEL, messages=EVENT, response_format=CalendarEvent
    )
    assert isinstance(completion.choices[0].message.parsed, CalendarEvent)


def test_parsed_tools_of_responses() -> None:
    response = client.responses.parse(
        model=MODEL,
        input="look up all my orders in november of last year",
        tools=[openai.pydantic_function_tool(Query)],
        tool_choice="required",
    )
    assert isinstance(response.output[0].parsed_arguments, Query)


def test_parsed_tools_of_chat() -> None:
    completion = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "look up all my orders in may of last year"}],
        tools=[openai.pydantic_function_tool(Query)],
        tool_choice={"type": "function", "function": {"name": "Query"}},
    )
    (call,) = completion.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Query)


def test_streamed_and_parsed_tools_of_chat() -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "What's the weather like in Paris?"}],
        tools=[openai.pydantic_function_tool(GetWeather, name="get_weather")],
        tool_choice="required",
    ) as stream:
        kinds = {event.type for event in stream}
        (call, *_) = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in kinds
    assert isinstance(call.function.parsed_arguments, GetWeather)


def test_a_call_and_its_result() -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")["function"]
    tools = [tool | {"type": "function"}]
    history = [{"role": "user", "content": "What is the weather like in Paris today?"}]
    response = client.responses.create(model=MODEL, tools=tools, input=history)
    history += response.output
    calls = [item for item in response.output if item.type == "function_call"]
    assert calls
    for call in calls:
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "15 C"}
        history.append(output)
    assert client.responses.create(model=MODEL, tools=tools, input=history).output_text


def test_a_custom_tool_with_a_grammar_and_its_result() -> None:
    asked = "Use the math_exp tool to add four plus four."
    first = client.responses.create(model=MODEL, input=asked, tools=[MATH], max_output_tokens=200)
    call = next(item for item in first.output if item.type == "custom_tool_call")
    assert call.name == "math_exp"
    assert re.fullmatch(EXPRESSION, call.input) or first.status == "incomplete"
    assert client.responses.retrieve(first.id).output == first.output
    second = client.responses.create(
        model=MODEL,
        input=[{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "8"}],
        tools=[MATH],
        previous_response_id=first.id,
    )
    assert second.output_text


def test_a_custom_tool_of_free_text_in_a_stream() -> None:
    asked = "Use the code_exec tool to print hello world to the console."
    with client.responses.stream(
        model=MODEL, input=asked, tools=[CODE], tool_choice={"type": "custom", "name": "code_exec"}
    ) as stream:
        events = list(stream)
        [call] = stream.get_final_response().output
    told = [one.delta for one in events if one.type == "response.custom_tool_call_input.delta"]
    [done] = [one for one in events if one.type == "response.custom_tool_call_input.done"]
    assert "".join(told) == done.input == call.input


def test_custom_tools_of_chat_and_their_results() -> None:
    custom = {one: MATH[one] for one in ("name", "description")}
    custom["format"] = {"type": "grammar", "grammar": MATH_FORMAT}
    history = [{"role": "user", "content": "Add four plus four."}]
    asked = {"model": MODEL, "tools": [{"type": "custom", "custom": custom}], "max_tokens": 200}
    message = client.chat.completions.create(messages=history, **asked).choices[0].message
    history.append(message)
    for call in message.tool_calls:
        assert (call.type, call.custom.name) == ("custom", "math_exp")
        assert re.match(EXPRESSION, call.custom.input)
        history.append({"role": "tool", "tool_call_id": call.id, "content": "8"})
    answer = client.chat.completions.create(messages=history, **asked).choices[0].message
    assert answer.content


def test_custom_tools_of_chat_in_a_stream() -> None:
    custom = {one: CODE[one] for one in ("name", "description")}
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Print hello world."}],
        tools=[{"type": "custom", "custom": custom}],
        stream=True,
    )
    calls = [call for one in stream for call in one.choices[0].delta.tool_calls or ()]
    assert (calls[0].type, calls[0].custom["name"]) == ("custom", "code_exec")
    assert "".join(call.custom["input"] for call in calls)


def test_conversations() -> None:
    conversation = client.conversations.create(metadata={"topic": "demo"})
    first = client.responses.create(
        model=MODEL, input="What are the 5 Ds of dodgeball?", conversation=conversation.id
    )
    assert first.conversation.id == conversation.id
    client.responses.create(model=MODEL, input="And the first one?", conversation=conversation.id)
    items = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in items] == ["user", "assistant"] * 2
    added = client.conversations.items.create(
        conversation.id,
        items=[{"type": "message", "role": "user", "content": "Thanks"}],
    )
    client.conversations.items.delete(added.data[0].id, conversation_id=conversation.id)
    updated = client.conversations.update(conversation.id, metadata={"topic": "done"})
    assert updated.metadata == {"topic": "done"}
    assert client.conversations.delete(conversation.id).deleted


def test_stored_responses() -> None:
    response = client.responses.create(model=MODEL, input="Say hello.", metadata={"a": "b"})
    assert client.responses.retrieve(response.id).output_text == response.output_text
    (item,) = client.responses.input_items.list(response.id).data
    assert item.role == "user"
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_stored_chats() -> None:
    asked = [{"role": "user", "content": "Say hello."}]
    completion = client.chat.completions.create(
        model=MODEL, messages=asked, store=True, metadata={"suite": "openai"}
    )
    stored = client.chat.completions.retrieve(completion.id)
    assert stored.choices[0].message.content == completion.choices[0].message.content
    listed = client.chat.completions.list(metadata={"suite": "openai"})
    assert completion.id in [one.id for one in listed.data]
    (message,) = client.chat.completions.messages.list(completion.id).data
    assert message.content == "Say hello."
    assert client.chat.completions.delete(completion.id).deleted


def test_background() -> None:
    response = client.responses.create(model=MODEL, input="Say hello.", background=True)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert response.status == "completed"


def test_input_tokens_and_compaction() -> None:
    assert client.responses.input_tokens.count(model=MODEL, input="Tell me a joke.").input_tokens
    asked = [{"role": "user", "content": "The launch is on Tuesday."}]
    assert client.responses.compact(model=MODEL, input=asked).output


def test_responses_over_a_socket() -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="Say hello!")
        kinds = []
        for event in connection:
            kinds.append(event.type)
            if event.type == "response.completed":
                break
    assert "response.output_text.delta" in kinds


def test_completions() -> None:
    completion = client.completions.create(model=MODEL, prompt="Say this is a test", max_tokens=7)
    assert completion.choices[0].text


def test_models_and_raw_responses() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Say this is a test"}], max_tokens=4
    )
    assert raw.headers["x-request-id"]
    assert raw.parse().choices


def test_errors() -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[])
    assert caught.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "."}])
    with pytest.raises(openai.AuthenticationError):
        OpenAI(api_key="pw_wrong.wrong").models.list()


def test_a_picture_is_shown() -> None:
    shown = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
    asked = {"type": "input_text", "text": "What is in this image?"}
    response = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": [asked, shown]}]
    )
    assert response.output_text
    parts = [
        {"type": "text", "text": "What is in this image?"},
        {"type": "image_url", "image_url": {"url": shown["image_url"]}},
    ]
    completion = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}]
    )
    assert completion.choices[0].message.content


def test_a_picture_is_uploaded_and_shown_by_its_id() -> None:
    content = base64.b64decode(PIXEL)
    file = client.files.create(file=("pixel.png", content), purpose="vision")
    assert file.id in [one.id for one in client.files.list(purpose="vision")]
    assert client.files.content(file.id).read() == content
    shown = {"type": "input_image", "file_id": file.id}
    asked = {"type": "input_text", "text": "What is in this image?"}
    response = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": [asked, shown]}]
    )
    assert response.output_text
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
