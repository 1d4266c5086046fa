"""pydantic-ai: its guides' examples, on chat completions and on Responses."""

import os
from dataclasses import dataclass

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, RunContext, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

NAME = os.environ["SUITE_MODEL"]


class CityLocation(BaseModel):
    city: str = Field(max_length=40)
    country: str = Field(max_length=40)


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest) -> Model:
    return request.param(NAME)


async def test_hello_world(model: Model) -> None:
    agent = Agent(model, instructions="Be concise, reply with one sentence.")
    result = await agent.run('Where does "hello world" come from?')
    assert result.output
    assert result.usage.output_tokens


def dice_agent(model: Model) -> Agent:
    agent = Agent(
        model,
        deps_type=str,
        system_prompt="You're a dice game, you should roll the die and see if it matches.",
    )

    @agent.tool_plain
    def roll_dice() -> str:
        """Roll a six-sided die and return the result."""
        return "4"

    @agent.tool
    def get_player_name(ctx: RunContext[str]) -> str:
        """Get the player's name."""
        return ctx.deps

    return agent


def tools_called(result: object) -> list[str]:
    parts = [part for message in result.all_messages() for part in message.parts]
    return [part.tool_name for part in parts if part.part_kind == "tool-return"]


async def test_dice_game(model: Model) -> None:
    result = await dice_agent(model).run("My guess is 4", deps="Anne")
    assert set(tools_called(result)) <= {"roll_dice", "get_player_name"}
    assert tools_called(result)
    assert result.output


async def test_two_turns_with_tools(model: Model) -> None:
    agent = dice_agent(model)
    first = await agent.run("My guess is 4", deps="Anne")
    second = await agent.run("Again, with 5", deps="Anne", message_history=first.all_messages())
    assert second.output


@pytest.mark.parametrize("how", [CityLocation, ToolOutput, NativeOutput, PromptedOutput])
async def test_structured_output(model: Model, how: type) -> None:
    output_type = how if how is CityLocation else how(CityLocation)
    agent = Agent(model, output_type=output_type)
    result = await agent.run("Where were the olympics held in 2012?")
    assert isinstance(result.output, CityLocation)


async def test_streamed_text(model: Model) -> None:
    async with Agent(model).run_stream('Where does "hello world" come from?') as result:
        texts = [text async for text in result.stream_text(debounce_by=None)]
    assert texts[-1] == await result.get_output()


async def test_streamed_output(model: Model) -> None:
    agent = Agent(model, output_type=CityLocation)
    async with agent.run_stream("Where were the olympics held in 2012?") as result:
        assert [one async for one in result.stream_output(debounce_by=None)]


async def test_streamed_events(model: Model) -> None:
    kinds = set()
    async with dice_agent(model).run_stream_events("My guess is 4", deps="Anne") as events:
        async for event in events:
            kinds.add(event.event_kind)
    assert {"function_tool_call", "function_tool_result", "agent_run_result"} <= kinds


async def test_dependencies_and_output(model: Model) -> None:
    @dataclass
    class Support:
        customer: str

    class Advice(BaseModel):
        support_advice: str = Field(max_length=60)
        block_card: bool
        risk: int = Field(ge=0, le=10)

    agent = Agent(model, deps_type=Support, output_type=NativeOutput(Advice))

    @agent.instructions
    def name(ctx: RunContext[Support]) -> str:
        return f"The customer's name is {ctx.deps.customer!r}."

    result = await agent.run("I just lost my card!", deps=Support("John"))
    assert 0 <= result.output.risk <= 10
