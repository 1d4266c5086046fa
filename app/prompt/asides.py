"""What earlier answers have reasoned, in the tokens of a conversation that goes on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from app.prompt.reasoning_style import Opened

Aside = tuple[int, int]
"""Where reasoning begins and ends, with the markers around it."""


def asides_of(prompt_tokens: int, opened: Opened | None, output: Sequence[Aside]) -> list[Aside]:
    """Where a prompt and its answer have what was reasoned in the answer.

    `opened` is how the prompt begins the answer, and `output` counts from there.
    """
    moved = [(prompt_tokens + begin, prompt_tokens + end) for begin, end in output]
    if opened is None or not opened.num_tokens:
        return moved
    begin = prompt_tokens - opened.num_tokens
    if moved and moved[0][0] == prompt_tokens:
        return [(begin, moved[0][1]), *moved[1:]]
    return [(begin, prompt_tokens), *moved]


def without_asides(
    ids: Sequence[int], asides: Sequence[Aside], starts: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The tokens without those of `asides`, and where `starts` lie among them."""
    kept: list[int] = []
    at = 0
    for begin, end in asides:
        kept += ids[at:begin]
        at = end
    kept += ids[at:]
    ends = [end for _, end in asides]
    gone = [0]
    for begin, end in asides:
        gone.append(gone[-1] + end - begin)
    return kept, [start - gone[bisect_right(ends, start)] for start in starts]
