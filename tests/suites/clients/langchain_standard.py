"""LangChain's standard tests for chat models, on chat completions and on Responses."""

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

# A small model could go on for thousands of tokens where a test wants one sentence.
MOST_TOKENS = 256


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["SUITE_MODEL"],
            "base_url": os.environ["OPENAI_BASE_URL"],
            "max_tokens": MOST_TOKENS,
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False

    @property
    def model_override_value(self) -> str:
        return os.environ["SUITE_MODEL"]


class TestResponses(TestChat):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}
