"""What a chat template writes behind the turns so far, whose own text is never written again."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from app.wire.errors import ApiError, invalid_request
from app.wire.functions import FunctionCall, Message

SENTINEL: Final = f"end-of-answer-{secrets.token_hex(8)}"
"""What no client can write, being unable to guess it."""
ASKED: Final[Message] = {"role": "user", "content": "."}
"""What somebody has asked, where it does not matter what."""


class Write(Protocol):
    """What the template makes of messages."""

    def __call__(self, messages: Sequence[Message], *, opens: bool) -> str:
        """Up to where an answer begins, or, where it `opens` none, to the end of what is said."""
        ...


def behind_question(write: Write, opens: bool, messages: Sequence[Message]) -> str:
    """What is written behind messages that nobody has answered. Raises `ApiError`."""
    before = write([ASKED], opens=False)
    whole = write([ASKED, *messages], opens=opens)
    if not whole.startswith(before):
        raise _cannot_continue()
    return whole.removeprefix(before)


def behind_answer(
    write: Write, opens: bool, ends: Sequence[str], messages: Sequence[Message]
) -> str:
    """What is written behind an answer. `ends` are what its last token spells if that ends turns,
    and is not written again, and the token that ends texts. Raises `ApiError`.
    """
    tail = _tail(write, opens, {"role": "assistant", "content": SENTINEL}, messages)
    return tail.removeprefix(ends[0])


def behind_calls(
    write: Write,
    opens: bool,
    ends: Sequence[str],
    calls: Sequence[FunctionCall],
    messages: Sequence[Message],
) -> str:
    """The same for an answer that is `calls` which the template writes."""
    same = [replace(call, arguments="{}") for call in calls]
    same[-1] = replace(same[-1], arguments=f'{{"{SENTINEL}": ""}}')
    tail = _tail(write, opens, {"role": "assistant", "content": "", "calls": same}, messages)
    for end in ends:
        if end and end in tail:
            return tail[tail.index(end) :].removeprefix(ends[0])
    return behind_answer(write, opens, ends, messages)


def _tail(write: Write, opens: bool, answer: Message, messages: Sequence[Message]) -> str:
    """What is written behind the sentinel in an answer."""
    _, found, tail = write([ASKED, answer, *messages], opens=opens).partition(SENTINEL)
    if not found:
        raise _cannot_continue()
    return tail


def _cannot_continue() -> ApiError:
    message = "This model's chat template cannot continue a conversation."
    return invalid_request(message, "previous_response_id", "unsupported_value")
