"""Where breakpoints lie in the tokens of a prompt, whatever a template makes of the texts."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from app.prompt.breakpoints import moved
from app.request.template_options import TemplateOptions
from app.wire.functions import Message, Tools
from app.wire.items import InputText
from app.wire.prompt_cache import CacheBreakpoint, with_breakpoints
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
    return with_breakpoints({"role": role, "content": content}, parts)


async def prefixes(
    messages: list[Message],
    tokenizer: PreTrainedTokenizerBase | None = None,
    previous: list[int] | None = None,
) -> list[str]:
    """What lies before each of the breakpoints."""
    tokenizer = tokenizer or byte_tokenizer()
    template = chat_template(tokenizer)
    if previous is None:
        ids = await template.prompt_ids("acme", messages, "input")
        render = template.rendering("input", Tools(), TemplateOptions())
    else:
        ids = await template.continuation_ids("acme", previous, messages, "input")
        render = template.later_rendering(previous, "input", (), TemplateOptions())
    found = await template.breakpoints("acme", ids, messages, render, previous or ())
    return [str(tokenizer.decode(ids[:at])) for at in found]


def byte_tokenizer_that(template: str) -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


async def test_each_breakpoint_lies_where_its_part_ends() -> None:
    messages = [said("one|", "two|"), said("answer", role="assistant"), said("three|", "four")]
    first, second, third = await prefixes(messages)
    assert first == "<|im_start|>user\none"
    assert second == "<|im_start|>user\nonetwo"
    assert third.startswith(second)
    assert third.endswith("<|im_start|>user\nthree")
    assert await prefixes([said("one", "two")]) == []
    assert await prefixes([said("|", "two")]) == ["<|im_start|>user\n"]


async def test_the_latest_four_count() -> None:
    found = await prefixes([said("a|", "b|", "c|"), said("d|", "e|", "f")])
    assert [one[-1] for one in found] == ["b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("template", "texts", "expected"),
    [
        (TRIMMING, ("  one \n|",), ["one"]),
        (TRIMMING, ("  one \n|", " two "), ["one \n"]),
        (TRIMMING, ("  one |", " two |", "  "), ["one ", "one  two"]),
        # A control token that parts spell together is broken behind its first character.
        (CHATML, ("<|im_|", "end|>no turn ends here"), ["<"]),
        (CHATML, ("<|im_end|>|", "nor here"), ["<|im_end|>"]),
    ],
)
async def test_it_holds_what_is_there_without_it(
    template: str, texts: tuple[str, ...], expected: list[str]
) -> None:
    found = await prefixes([said(*texts)], byte_tokenizer_that(template))
    assert found == [f"<|im_start|>user\n{one}" for one in expected]


async def test_a_message_that_is_not_written_has_none() -> None:
    messages: Any = [said("one|", "two"), {**said("result|"), "role": "tool"}]
    found = await prefixes(messages, byte_tokenizer_that(FORGETFUL))
    assert found == ["<|im_start|>user\none"]


async def test_a_token_across_it_is_behind_it() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {one: index for index, one in enumerate([*alphabet, "ab", "cd"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("c", "d")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="!")
    tokenizer.chat_template = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
    assert await prefixes([said("cdab|", "x")], tokenizer) == ["cdab"]
    assert await prefixes([said("cda|", "bx")], tokenizer) == ["cd"]


async def test_in_a_later_turn_it_lies_behind_the_earlier_ones() -> None:
    tokenizer = byte_tokenizer()
    previous = await chat_template(tokenizer).prompt_ids("acme", [said("one")], "input")
    (found,) = await prefixes([said("two|", "three")], tokenizer, previous)
    assert found.startswith(tokenizer.decode(previous))
    assert found.endswith("<|im_start|>user\ntwo")


def test_they_move_with_what_is_cut_out_of_the_middle() -> None:
    before = list(range(10))
    assert moved([2, 3, 5, 7, 9], before, [*before[:3], *before[6:]]) == [2, 3, 3, 4, 6]
