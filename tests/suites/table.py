"""All suites: what each runs, on what, and which of its cases cannot pass here, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Model = Literal["default", "calling"]
"""The model as it is, in fp32, or one that sees, held to calls and to brief answers: see
`calling.py`."""


@dataclass(frozen=True)
class Suite:
    """One file of `clients/`, and the packages that its environment is made of.

    `known` has, by part of a case's name, why it fails for no fault of the service.
    """

    script: str
    packages: tuple[str, ...]
    model: Model = "calling"
    shares_project: bool = False
    """Whether the environment sees the project's own packages, which are large."""
    known: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What runs it, by the end of its name."""
        return self.script.rpartition(".")[2]


_IDS = "the SDK strips the ids that its own converter to chat completions asks for"
_SMALL = "the model is too small to say what the case asks for"
_UNTOLD = "only the prompt tells of the schema, and the model is too small to follow it"

SUITES: dict[str, Suite] = {
    "open-responses": Suite(
        "open_responses.py",
        ("openresponses-types==2.4.0", "httpx==0.28.1", "websockets==17.0"),
    ),
    "openai-python": Suite("openai_python.py", ("openai==3.51.0", "websockets==15.0.1")),
    "openai-node": Suite("openai_node.mjs", ("openai@6.49.0", "zod@4", "ws@8")),
    "anthropic-python": Suite("anthropic_python.py", ("anthropic==2.14.0",)),
    "anthropic-node": Suite("anthropic_node.mjs", ("@anthropic-ai/sdk@1.14.0", "zod@4")),
    "ai-sdk": Suite(
        "ai_sdk.mjs",
        (
            "ai@6.0.326",
            "@ai-sdk/openai@3.0.141",
            "@ai-sdk/openai-compatible@2.0.91",
            "@ai-sdk/anthropic@3.0.140",
            "zod@4",
        ),
    ),
    "langchain": Suite(
        "langchain_standard.py",
        ("langchain-tests==1.1.9", "langchain-openai==1.6.7"),
        known={
            "test_tool_calling[": _SMALL,
            "test_tool_calling_async": _SMALL,
            "unicode": _SMALL,
            "json_mode": _UNTOLD,
        },
    ),
    "langchain-anthropic": Suite(
        "langchain_anthropic_standard.py",
        ("langchain-tests==1.1.9", "langchain-anthropic==1.7.10"),
        known={
            "test_tool_calling[": _SMALL,
            "test_tool_calling_async": _SMALL,
            "unicode": _SMALL,
        },
    ),
    "agents-sdk": Suite(
        "agents_sdk.py", ("openai-agents==0.24.0",), known={"conversations_session[chat]": _IDS}
    ),
    "pydantic-ai": Suite(
        "pydantic_agents.py",
        ("pydantic-ai-slim[openai]==2.68.0",),
        known={"PromptedOutput": _UNTOLD},
    ),
    "instructor": Suite(
        "instructor_models.py", ("instructor==1.17.0",), known={"Mode.JSON]": _UNTOLD}
    ),
    "litellm": Suite("litellm_calls.py", ("litellm==1.99.4",)),
    "llm": Suite("llm_program.py", ("llm==0.36",)),
    "jdk": Suite("JdkClients.java", ()),
    "lm-eval": Suite(
        "lm_eval_scores.py", ("lm-eval[api,hf]==0.4.13",), "default", shares_project=True
    ),
}
