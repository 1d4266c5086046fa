"""Where the prefix ends that a client means later prompts to begin with, as tokens of the prompt.

A conversation's last breakpoint is all there is to know of them: whatever is found before it is
found before every earlier one.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Callable, Sequence

from app.wire.functions import Message

_SENTINEL = f"end-of-prefix-{secrets.token_hex(8)}"
"""What no client can write, being unable to guess it, and not the one that ends answers: that is
looked for in what is rendered here.
"""


def rendered_before(
    messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> str | None:
    """What is rendered before the last breakpoint of `messages`; `None` where they have none.

    As far as it is the same without a sentinel there: templates trim texts, and some leave whole
    messages out.
    """
    index = max((at for at, one in enumerate(messages) if "breakpoint" in one), default=None)
    if index is None:
        return None
    message = messages[index]
    text, characters = message["content"], message["breakpoint"]
    marked: Message = {**message, "content": f"{text[:characters]}{_SENTINEL}{text[characters:]}"}
    before, found, _ = render([*messages[:index], marked, *messages[index + 1 :]]).partition(
        _SENTINEL
    )
    return _common(before, render(messages)) if found else None


def moved(position: int | None, before: Sequence[int], after: Sequence[int]) -> int | None:
    """Where `position` in `before` is once some ids have been cut out of the middle."""
    if position is None:
        return None
    kept = num_common(before, after)
    cut = len(before) - len(after)
    return position if position <= kept else max(kept, position - cut)


def _common(left: str, right: str) -> str:
    """What both texts begin with."""
    return left if right.startswith(left) else left[: num_common(left, right)]


def num_common(left: Sequence[object], right: Sequence[object]) -> int:
    """How many members both begin with; in as many looks as the length has bits."""
    most = min(len(left), len(right))
    return bisect_left(range(1, most + 1), True, key=lambda count: left[:count] != right[:count])
