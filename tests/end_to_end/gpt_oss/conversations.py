"""What the model of the folder has learnt to say, and the prompts that it says it behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from transformers import PreTrainedTokenizerFast

from tests.end_to_end.gpt_oss.folder import Example

INSTRUCTIONS: Final = "Speak of the weather, and be terse."
QUESTION: Final = "What is the weather in Bonn?"
RESULT: Final = "sunny, 21 degrees"
THANKS: Final = "Thank you. Shall I take a coat?"
PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where it is."},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city"],
}
FUNCTION: Final[dict[str, Any]] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": PARAMETERS,
}
ARGUMENTS: Final = '{"city": "Bonn", "unit": "celsius"}'
LOOKING, TELLING, COUNSEL = "I do not know; look it up.", "The result says it.", "21 degrees: no."
HARD = "The user wants a thorough answer. First, look it up."
SHAPING, SHAPED = "As JSON, then.", '{"city": "Bonn", "unit": "fahrenheit"}'
ANSWER, ADVICE = "It is sunny in Bonn: 21 °C. 🌞", "No, it is warm."
_START: Final = "<|start|>assistant"


def _reasoned(thought: str) -> str:
    return f"<|channel|>analysis<|message|>{thought}<|end|>{_START}"


def _final(text: str) -> str:
    return f"<|channel|>final<|message|>{text}"


_CALL: Final = (
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    f"{ARGUMENTS}<|call|>"
)
"""As the model itself writes it; the template writes the recipient before the channel."""
_RESULT: Final = (
    "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"
    f'"{RESULT}"<|end|>{_START}'
)
_THANKED: Final = f"<|end|><|start|>user<|message|>{THANKS}<|end|>{_START}"

ANSWERS: Final = (
    _reasoned(LOOKING) + _CALL,
    _reasoned(TELLING) + _final(ANSWER) + "<|return|>",
    _reasoned(COUNSEL) + _final(ADVICE) + "<|return|>",
)
"""What is said at each of three turns: a call, an answer, and another one."""
ANSWER_IN_JSON: Final = (
    _reasoned(SHAPING) + f"<|channel|>final <|constrain|>json<|message|>{SHAPED}<|return|>"
)
"""Without tools, as the model writes what it knows to be JSON."""
ANSWER_AFTER_EFFORT: Final = _reasoned(HARD) + _CALL


def said_messages() -> list[dict[str, Any]]:
    """The three turns as a chat's client sends them, each with what the model reasoned."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Bonn", "unit": "celsius"}},
    }
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "", "thinking": LOOKING, "tool_calls": [call]},
        {"role": "tool", "content": RESULT, "tool_call_id": "call_1"},
        {"role": "assistant", "content": ANSWER, "thinking": TELLING},
        {"role": "user", "content": THANKS},
    ]


def first_prompt(tokenizer: PreTrainedTokenizerFast, effort: str = "medium") -> str:
    """Up to where the first answer begins."""
    return _rendered(tokenizer, 2, effort)


def rendered_prompts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Those of the three turns where each time all is sent and written anew."""
    return [_rendered(tokenizer, count) for count in (2, 4, 6)]


def continued_prompts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Those of the three turns where each goes on behind what was said, byte for byte.

    The third has none of the reasoning: a final answer has followed it.
    """
    first = first_prompt(tokenizer)
    third = first + _CALL + _RESULT + _final(ANSWER) + _THANKED
    return [first, first + ANSWERS[0] + _RESULT, third]


def examples(tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """All prompts that are asked, and their answers."""
    turns = [
        *zip(rendered_prompts(tokenizer), ANSWERS, strict=True),
        *zip(continued_prompts(tokenizer)[1:], ANSWERS[1:], strict=True),
        (first_prompt(tokenizer, "high"), ANSWER_AFTER_EFFORT),
        (_rendered(tokenizer, 2, tools=()), ANSWER_IN_JSON),
    ]
    return [(prompt, answer) for prompt, answer in turns]


def _rendered(
    tokenizer: PreTrainedTokenizerFast,
    count: int,
    effort: str = "medium",
    tools: Sequence[dict[str, Any]] = (FUNCTION,),
) -> str:
    return str(
        tokenizer.apply_chat_template(
            said_messages()[:count],
            tools=[{"type": "function", "function": one} for one in tools],
            tokenize=False,
            add_generation_prompt=True,
            reasoning_effort=effort,
        )
    )
