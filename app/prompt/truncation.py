"""What goes where a conversation is too long for the context (`truncation: "auto"`).

Whole turns go, out of the middle: the system text and the first turn stay, a head that every later
request finds in the cache, and so do the newest turns. More goes than has to, up to a bound that
does not move with every new turn: what stays then begins with the same tokens for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.wire.functions import Message

_PARTS = 4
"""A cut makes room for such a part of the context."""
_TOKEN_CHARACTERS = 4
"""About; a bound need not be exact."""


def without_middle(
    messages: Sequence[Message], room: int, count: Callable[[Message], int]
) -> list[Message]:
    """`messages` without so many turns that about `room` tokens are left, if that many can go.

    `count` tells the tokens of a message; of the middle only those that stay are counted.
    """
    head, *turns = _turns(messages)
    if len(turns) < 2:
        return list(messages)
    *middle, last = turns
    left = room - sum(map(count, head)) - sum(map(count, last))
    cut = len(middle)
    while cut > 0 and left > 0:
        left -= sum(map(count, middle[cut - 1]))
        if left >= 0:
            cut -= 1
    kept = middle[_bound(middle, cut, room) :]
    return [*head, *(message for turn in [*kept, last] for message in turn)]


def without_middle_ids(
    ids: list[int], starts: list[int], room: int, special: Collection[int]
) -> tuple[list[int], list[int]]:
    """The same for a conversation that is known as ids, whose later turns begin at `starts`.

    Turns end with a token out of `special`, written by the model or before what comes next.
    Returns the ids and where their turns begin.
    """
    if len(starts) < 2:
        return ids, starts
    first = starts[0]
    needed = max(len(ids) - room, room // _PARTS)
    start = next((one for one in starts[1:-1] if one - first >= needed), starts[-1])
    head, tail = ids[:first], ids[start:]
    if ids[start - 1] in special:
        head = head if head[-1] == ids[start - 1] else [*head, ids[start - 1]]
    elif head[-1] in special and tail[0] == head[-1]:
        head = head[:-1]
    moved = len(head) - start
    return [*head, *tail], [one + moved for one in starts if one >= start]


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages by turns, which users begin; what comes before is a part of the first."""
    turns: list[list[Message]] = [[]]
    answered = False
    for message in messages:
        if message["role"] == "user" and answered:
            turns.append([])
            answered = False
        answered = answered or message["role"] == "assistant"
        turns[-1].append(message)
    return turns


def _bound(middle: Sequence[Sequence[Message]], cut: int, room: int) -> int:
    """Where to cut, at `cut` or behind it: where the turns before have another part of the context.

    They are measured by characters from the front: the same place for all requests until then.
    """
    characters, part = 0, max(1, room * _TOKEN_CHARACTERS // _PARTS)
    for index, turn in enumerate(middle):
        before, characters = characters, characters + sum(len(one["content"]) for one in turn)
        if index + 1 >= cut and characters // part > before // part:
            return index + 1
    return cut
