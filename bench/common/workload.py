"""What the benches send: system prompts of an exact length, and questions that never repeat."""

from __future__ import annotations

import random
from collections.abc import Callable

from bench.registry import BenchError

_WORDS = """
    answer ask book bridge city clear cold day door early end eye fair field fire first food
    friend garden good green hand head heart help hill home horse house idea island king lake
    land language law letter light line long man map market moon morning mountain music name
    night north number ocean old open order paper part people place plan plant poem point power
    question quick rain reason red right river road room round salt school sea season second
    ship short side sign silver simple sister small snow song south star stone story street
    strong summer sun table teacher time town tree valley village voice wall warm water west
    wind window winter woman wood word work world year young
""".split()  # noqa: SIM905
_PADDING = " a"

CountTokens = Callable[[str], int]


def system_prompt(seed: str, tokens: int, count: CountTokens) -> str:
    """A text of exactly `tokens` tokens, different for every seed from its first words on.

    Raises `BenchError` if the tokenizer cannot be met exactly.
    """
    draw = random.Random(f"system {seed}")
    text = f"You are assistant {seed}, with these notes:"
    while count(text) < tokens:
        text += f" {draw.choice(_WORDS)}"
    while count(text) > tokens and " " in text:
        text = text.rpartition(" ")[0]
    while count(text) < tokens:
        text += _PADDING
    if count(text) != tokens:
        raise BenchError(f"no system prompt of exactly {tokens} tokens could be made")
    return text


def passage(seed: str, words: int) -> str:
    """That many common words (about a token each), different for every seed from the first on."""
    draw = random.Random(f"passage {seed}")
    return f"{draw.getrandbits(32):x}: " + " ".join(draw.choices(_WORDS, k=words))


def question(seed: str) -> str:
    """A short question, different for every seed from its first words on."""
    draw = random.Random(f"question {seed}")
    one, other, third = draw.sample(_WORDS, 3)
    return f"{one.capitalize()} and {other} ({seed}): what have they to do with a {third}?"
