"""LangChain's standard tests for chat models, on the Messages API by `langchain-anthropic`."""

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests

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
        return False

    @property
    def model_override_value(self) -> str:
        return os.environ["SUITE_MODEL"]
