"""Chat templates of models that reason, in the style of their families, and worlds with them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from app.transport.bounds import Bounds
from tests.app.conftest import World, byte_tokenizer, living
from tests.app.scripted_engine import ScriptedEngine

_CALLS: Final = (
    "{% for call in m.tool_calls or [] %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
)
_LAST: Final = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
)
_PROMPT: Final = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
_TURNS: Final = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content }}" + _CALLS + "{{ '<|im_end|>\n' }}{% endfor %}"
)
SWITCHED: Final = (
    _LAST + _TURNS + _PROMPT + "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
"""As Qwen3: reasoning of earlier turns is left out, that before a call's result is not."""
OPENED: Final = _LAST + _TURNS + _PROMPT + "{{ '<think>\n' }}{% endif %}"
"""As DeepSeek R1 and Qwen3-Thinking: the prompt itself opens the reasoning."""
KEPT: Final = SWITCHED.replace(" and loop.index0 > ns.last", "")
"""One that repeats all that was ever reasoned."""
HARMONY: Final = (
    "{{ '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% set ns = namespace(last=-1) %}{% for m in messages %}"
    "{% if m.role == 'assistant' and m.content %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.thinking and loop.index0 > ns.last %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{% set call = m.tool_calls[0].function %}{{ '<|start|>assistant to=functions.' + call.name }}"
    "{{ '<|channel|>commentary json<|message|>' }}{{ call.arguments | tojson }}{{ '<|call|>' }}"
    "{% elif m.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{% elif m.role == 'tool' %}"
    "{{ '<|start|>functions.x to=assistant<|channel|>commentary<|message|>' }}"
    "{{ m.content | tojson }}{{ '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
"""As gpt-oss."""
_CONTROLS: Final = (
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>",
)  # fmt: skip


def reasoning_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """The tokenizer of all bytes with a template, and the control tokens that it has."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    if template == HARMONY:
        controls = [AddedToken(one, special=True) for one in _CONTROLS]
        tokenizer.add_tokens(controls, special_tokens=True)
    return tokenizer


@contextlib.asynccontextmanager
async def reasoning_world(template: str, store_url: str) -> AsyncIterator[World]:
    """A service whose model has this template."""
    async with living(ScriptedEngine(reasoning_tokenizer(template)), Bounds(), store_url) as world:
        yield world
