"""The OpenAI Agents SDK: its guides' examples, on Responses and on chat completions."""

import os

import pytest
from agents import (
    Agent,
    CustomTool,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    input_guardrail,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

NAME = os.environ["SUITE_MODEL"]
set_tracing_disabled(True)


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


@function_tool
def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    return f"The weather in {city} is sunny."


@pytest.fixture(params=["responses", "chat"])
def model(request: pytest.FixtureRequest) -> Model:
    if request.param == "chat":
        return OpenAIChatCompletionsModel(NAME, AsyncOpenAI())
    return OpenAIResponsesModel(NAME, AsyncOpenAI())


async def test_hello_world(model: Model) -> None:
    agent = Agent(name="Assistant", instructions="You are a helpful assistant", model=model)
    result = await Runner.run(agent, "Write a haiku about recursion in programming.")
    assert result.final_output


async def test_custom_tool() -> None:
    seen = []

    async def add(_: object, text: str) -> str:
        seen.append(text)
        return str(eval(text))

    grammar = {"type": "grammar", "syntax": "regex", "definition": "[1-9]( [+] [1-9]){1,2}"}
    agent = Agent(
        name="Adder",
        instructions="You add numbers.",
        tools=[CustomTool("add", "Adds numbers.", on_invoke_tool=add, format=grammar)],
        model=OpenAIResponsesModel(NAME, AsyncOpenAI()),
    )
    assert (await Runner.run(agent, "What is two plus three?")).final_output
    assert seen
    assert all(text[0].isdigit() and "+" in text for text in seen)


async def test_function_tool(model: Model) -> None:
    agent = Agent(
        name="Hello world",
        instructions="You are a helpful agent.",
        tools=[get_weather],
        model=model,
    )
    result = await Runner.run(agent, input="What's the weather in Tokyo?")
    assert [item.type for item in result.new_items[:2]] == [
        "tool_call_item",
        "tool_call_output_item",
    ]
    assert result.final_output


async def test_required_tool(model: Model) -> None:
    agent = Agent(
        name="Weather agent",
        tools=[get_weather],
        model=model,
        model_settings=ModelSettings(tool_choice="required"),
        tool_use_behavior="stop_on_first_tool",
    )
    result = await Runner.run(agent, input="What's the weather in Tokyo?")
    assert "sunny" in result.final_output


async def test_handoff(model: Model) -> None:
    spanish = Agent(name="Spanish agent", instructions="You only speak Spanish.", model=model)
    triage = Agent(
        name="Triage agent",
        instructions="Handoff to the appropriate agent based on the language of the request.",
        handoffs=[spanish],
        model=model,
    )
    result = await Runner.run(triage, input="Hola, ¿cómo estás?")
    assert result.last_agent is spanish
    assert result.final_output


async def test_streamed_text(model: Model) -> None:
    agent = Agent(name="Joker", instructions="You are a helpful assistant.", model=model)
    result = Runner.run_streamed(agent, input="Please tell me 5 jokes.")
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    assert "".join(deltas) == result.final_output


async def test_streamed_items(model: Model) -> None:
    agent = Agent(name="Joker", tools=[get_weather], model=model)
    result = Runner.run_streamed(agent, input="How is the weather in Paris?")
    names = [
        event.name
        async for event in result.stream_events()
        if event.type == "run_item_stream_event"
    ]
    assert names[:2] == ["tool_called", "tool_output"]
    assert names[-1] == "message_output_created"


async def test_output_type(model: Model) -> None:
    agent = Agent(
        name="Calendar extractor",
        instructions="Extract calendar events from text",
        output_type=CalendarEvent,
        model=model,
    )
    result = await Runner.run(agent, "Alice and Bob go to a science fair on Friday.")
    assert isinstance(result.final_output, CalendarEvent)


async def test_two_turns_with_tools(model: Model) -> None:
    agent = Agent(name="Assistant", tools=[get_weather], model=model)
    first = await Runner.run(agent, "What's the weather in Tokyo?")
    asked = [*first.to_input_list(), {"role": "user", "content": "And in Paris?"}]
    assert (await Runner.run(agent, asked)).final_output


async def test_session(model: Model) -> None:
    agent = Agent(name="Assistant", instructions="Reply very concisely.", model=model)
    session = SQLiteSession("conversation_123")
    await Runner.run(agent, "What city is the Golden Gate Bridge in?", session=session)
    assert (await Runner.run(agent, "What state is it in?", session=session)).final_output
    assert len(await session.get_items()) == 4


async def test_conversations_session(model: Model) -> None:
    agent = Agent(name="Assistant", instructions="Reply very concisely.", model=model)
    session = OpenAIConversationsSession()
    await Runner.run(agent, "What city is the Golden Gate Bridge in?", session=session)
    assert (await Runner.run(agent, "What state is it in?", session=session)).final_output
    assert len(await session.get_items()) == 4


async def test_previous_response() -> None:
    agent = Agent(
        name="Assistant",
        instructions="Reply very concisely.",
        tools=[get_weather],
        model=OpenAIResponsesModel(NAME, AsyncOpenAI()),
    )
    result = await Runner.run(agent, "What's the weather in Tokyo?", auto_previous_response_id=True)
    result = await Runner.run(agent, "And in Paris?", previous_response_id=result.last_response_id)
    assert result.final_output


async def test_a_handoff_behind_previous_responses() -> None:
    model = OpenAIResponsesModel(NAME, AsyncOpenAI())
    spanish = Agent(
        name="Spanish agent",
        instructions="You only speak Spanish.",
        tools=[get_weather],
        model=model,
    )
    triage = Agent(name="Triage agent", instructions="Hand off.", handoffs=[spanish], model=model)
    result = await Runner.run(triage, input="Hola, ¿qué tiempo?", auto_previous_response_id=True)
    assert result.last_agent is spanish
    assert result.final_output
    again = await Runner.run(spanish, "¿Y en París?", previous_response_id=result.last_response_id)
    assert again.final_output


async def test_agent_as_tool(model: Model) -> None:
    spanish = Agent(name="Spanish agent", instructions="Translate to Spanish", model=model)
    tool = spanish.as_tool(
        tool_name="translate_to_spanish", tool_description="Translate the user's message to Spanish"
    )
    orchestrator = Agent(name="Orchestrator", tools=[tool], model=model)
    result = await Runner.run(orchestrator, input="Say 'Hello, how are you?' in Spanish.")
    assert result.final_output


async def test_guardrail(model: Model) -> None:
    class Homework(BaseModel):
        is_homework: bool

    checker = Agent(name="Check", instructions="Is it homework?", output_type=Homework, model=model)

    @input_guardrail
    async def guardrail(context: object, agent: Agent, asked: object) -> GuardrailFunctionOutput:
        found = (await Runner.run(checker, asked)).final_output
        return GuardrailFunctionOutput(output_info=found, tripwire_triggered=True)

    agent = Agent(name="Support", input_guardrails=[guardrail], model=model)
    with pytest.raises(InputGuardrailTripwireTriggered):
        await Runner.run(agent, "Hello, can you help me solve for x: 2x + 3 = 11?")
