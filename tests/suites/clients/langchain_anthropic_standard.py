"""LangChain's standard tests for chat models, on Messages, and what `langchain-anthropic` adds."""

import os
import uuid
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from pydantic import BaseModel

# A small model could go on for thousands of tokens where a test wants one sentence.
MOST_TOKENS = 256


class TestMessages(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": os.environ["SUITE_MODEL"], "max_tokens": MOST_TOKENS}

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return os.environ["SUITE_MODEL"]


class Contact(BaseModel):
    """Whom to write to."""

    name: str
    email: str


def chat(**fields: Any) -> ChatAnthropic:
    return ChatAnthropic(**{"model": os.environ["SUITE_MODEL"], "max_tokens": MOST_TOKENS} | fields)


def test_structured_output_by_schema() -> None:
    structured = chat().with_structured_output(Contact, method="json_schema")
    assert isinstance(structured.invoke("John Smith, john@example.com"), Contact)


def test_a_marked_prompt_is_found_again() -> None:
    rules = f"{uuid.uuid4()}: " + "Read before you write. " * 60
    mark = {"type": "ephemeral"}
    asked = [
        SystemMessage([{"type": "text", "text": rules, "cache_control": mark}]),
        HumanMessage("Hello!"),
    ]
    first, second = (chat().invoke(asked).usage_metadata["input_token_details"] for _ in range(2))
    written = first["cache_creation"] + first.get("ephemeral_5m_input_tokens", 0)
    assert written > 0
    assert second["cache_read"] >= written


def test_thinking_and_two_turns() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    model = chat(thinking=thinking, max_tokens=2000)
    turns: list[Any] = [HumanMessage("Hello!")]
    turns += [model.invoke(turns), HumanMessage("Tell me a joke.")]
    assert model.invoke(turns).text


def test_tokens_are_counted() -> None:
    asked = [HumanMessage("Hello!")]
    counted = chat().get_num_tokens_from_messages(asked)
    assert counted == chat().invoke(asked).usage_metadata["input_tokens"]
