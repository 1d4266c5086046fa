"""Where prefixes end that a client means later prompts to begin with, as tokens of the prompt."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Callable, Sequence

from app.wire.functions import Message
from app.wire.prompt_cache import MOST_WRITTEN

_SENTINEL = f"end-of-prefix-{secrets.token_hex(8)}"
"""What no client can write, being unable to guess it, and not the one that ends answers: that is
looked for in what is rendered here.
"""


def rendered_before(
    messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> list[str]:
    """What is rendered before each of the last breakpoints of `messages`, `MOST_WRITTEN` at most.

    As far as it is the same without a sentinel there: templates trim texts, and some leave whole
    messages out.
    """
    marks = [
        (index, characters)
        for index, message in enumerate(messages)
        for characters in message.get("breakpoints", ())
    ]
    if not marks:
        return []
    whole, found = render(messages), list[str]()
    for index, characters in marks[-MOST_WRITTEN:]:
        message, text = messages[index], messages[index]["content"]
        content = f"{text[:characters]}{_SENTINEL}{text[characters:]}"
        marked: Message = {**message, "content": content}
        before, mark, _ = render([*messages[:index], marked, *messages[index + 1 :]]).partition(
            _SENTINEL
        )
        if mark:
            found.append(_common(before, whole))
    return found


def moved(positions: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Where `positions` in `before` are once some ids have been cut out of the middle."""
    kept = num_common(before, after)
    cut = len(before) - len(after)
    return [one if one <= kept else max(kept, one - cut) for one in positions]


def _common(left: str, right: str) -> str:
    """What both texts begin with."""
    return left if right.startswith(left) else left[: num_common(left, right)]


def num_common(left: Sequence[object], right: Sequence[object]) -> int:
    """How many members both begin with; in as many looks as the length has bits."""
    most = min(len(left), len(right))
    return bisect_left(range(1, most + 1), True, key=lambda count: left[:count] != right[:count])
