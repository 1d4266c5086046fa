"""What the benches send: texts of an exact length, and questions that never repeat."""

from __future__ import annotations

import random
from bisect import bisect_right
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
    return exact_text(
        f"You are assistant {seed}, with these notes:", f"system {seed}", tokens, count
    )


def exact_text(start: str, seed: str, tokens: int, count: CountTokens) -> str:
    """`start` and as many words as make exactly `tokens` tokens, whatever they are for a seed.

    Counts a text about log2(tokens) times. Raises `BenchError` if the tokenizer cannot be met
    exactly.
    """
    words = random.Random(seed).choices(_WORDS, k=tokens)

    def text(number: int) -> str:
        return " ".join([start, *words[:number]])

    most = bisect_right(range(tokens + 1), tokens, key=lambda number: count(text(number))) - 1
    found = text(max(0, most))
    while count(found) < tokens:
        found += _PADDING
    if count(found) != tokens:
        raise BenchError(f"no text of exactly {tokens} tokens could be made")
    return found


def passage(seed: str, words: int) -> str:
    """That many common words (about a token each), different for every seed from the first on."""
    draw = random.Random(f"passage {seed}")
    return f"{unique_start(seed)} " + " ".join(draw.choices(_WORDS, k=words))


def unique_start(seed: str) -> str:
    """A few tokens to begin a text with, different for every seed from the first on."""
    return f"{random.Random(f'start {seed}').getrandbits(32):x}:"


def question(seed: str) -> str:
    """A short question, different for every seed from its first words on."""
    draw = random.Random(f"question {seed}")
    one, other, third = draw.sample(_WORDS, 3)
    return f"{one.capitalize()} and {other} ({seed}): what have they to do with a {third}?"
