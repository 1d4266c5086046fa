"""Where a breakpoint lies in the tokens of a prompt, whatever a template makes of the texts."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from app.prompt.breakpoints import moved
from app.request.template_options import TemplateOptions
from app.wire.functions import Message, Tools
from app.wire.items import InputText
from app.wire.prompt_cache import CacheBreakpoint, with_breakpoint
from tests.app.conftest import CHATML, byte_tokenizer, chat_template

MARK = CacheBreakpoint(mode="explicit")
TRIMMING = CHATML.replace("message['content']", "message['content'] | trim")
FORGETFUL = CHATML.replace(
    "{% for message in messages %}", "{% for message in messages if message['role'] != 'tool' %}"
)


def said(*texts: str, role: str = "user") -> Message:
    """A message of parts, with a breakpoint behind each of those that end with a bar."""
    parts = [
        InputText(
            type="input_text",
            text=text.removesuffix("|"),
            prompt_cache_breakpoint=MARK if text.endswith("|") else None,
        )
        for text in texts
    ]
    content = "".join(part.text for part in parts)
    return with_breakpoint({"role": role, "content": content}, parts)


async def prefix(
    messages: list[Message],
    tokenizer: PreTrainedTokenizerBase | None = None,
    previous: list[int] | None = None,
) -> str | None:
    """What lies before the breakpoint."""
    tokenizer = tokenizer or byte_tokenizer()
    template = chat_template(tokenizer)
    if previous is None:
        ids = await template.prompt_ids("acme", messages, "input")
        render = template.rendering("input", Tools(), TemplateOptions())
    else:
        ids = await template.continuation_ids("acme", previous, messages, "input")
        render = template.later_rendering(previous, "input", (), TemplateOptions())
    at = await template.breakpoint("acme", ids, messages, render, previous or ())
    return None if at is None else str(tokenizer.decode(ids[:at]))


def byte_tokenizer_that(template: str) -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


async def test_the_last_breakpoint_counts_and_lies_where_its_part_ends() -> None:
    messages = [said("one|", "two"), said("answer", role="assistant"), said("three|", "four")]
    found = await prefix(messages)
    assert found is not None
    assert found.endswith("<|im_start|>user\nthree")
    assert await prefix([said("one", "two")]) is None
    assert await prefix([said("|", "two")]) == "<|im_start|>user\n"
    whole = await prefix([said("one", "two|")])
    assert whole == "<|im_start|>user\nonetwo"


@pytest.mark.parametrize(
    ("template", "texts", "expected"),
    [
        (TRIMMING, ("  one \n|",), "<|im_start|>user\none"),
        (TRIMMING, ("  one \n|", " two "), "<|im_start|>user\none \n"),
        # A control token that parts spell together is broken behind its first character.
        (CHATML, ("<|im_|", "end|>no turn ends here"), "<|im_start|>user\n<"),
        (CHATML, ("<|im_end|>|", "nor here"), "<|im_start|>user\n<|im_end|>"),
    ],
)
async def test_it_holds_what_is_there_without_it(
    template: str, texts: tuple[str, ...], expected: str
) -> None:
    found = await prefix([said(*texts)], byte_tokenizer_that(template))
    assert found == expected


async def test_a_message_that_is_not_written_has_none() -> None:
    messages: Any = [said("one"), {**said("result|"), "role": "tool"}]
    assert await prefix(messages, byte_tokenizer_that(FORGETFUL)) is None


async def test_a_token_across_it_is_behind_it() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {one: index for index, one in enumerate([*alphabet, "ab", "cd"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("c", "d")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="!")
    tokenizer.chat_template = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
    assert await prefix([said("cdab|", "x")], tokenizer) == "cdab"
    assert await prefix([said("cda|", "bx")], tokenizer) == "cd"


async def test_in_a_later_turn_it_lies_behind_the_earlier_ones() -> None:
    tokenizer = byte_tokenizer()
    previous = await chat_template(tokenizer).prompt_ids("acme", [said("one")], "input")
    found = await prefix([said("two|", "three")], tokenizer, previous)
    assert found is not None
    assert found.startswith(tokenizer.decode(previous))
    assert found.endswith("<|im_start|>user\ntwo")


@pytest.mark.parametrize(
    ("position", "expected"), [(None, None), (2, 2), (3, 3), (5, 3), (7, 4), (9, 6)]
)
def test_it_moves_with_what_is_cut_out_of_the_middle(
    position: int | None, expected: int | None
) -> None:
    before = list(range(10))
    assert moved(position, before, [*before[:3], *before[6:]]) == expected
