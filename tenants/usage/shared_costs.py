"""What is computed once for a share group is charged to its members by what they used of it.

A group's usage holds, for each UTC day, what was computed of its prompts and how many tokens of
them each member's requests had. A day's amount is split in proportion to that; on a day on which
nobody used them it waits for the next one on which somebody did. Nothing is rounded away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Counts = Mapping[str, int]
USED_BY = "used:"
"""A group's quantity `used:TENANT` is how many tokens of its prompts a member's requests had."""


def split(amount: int, uses: Mapping[str, int]) -> dict[str, int]:
    """`amount` in whole parts that sum up to it, in proportion to `uses`; empty without any.

    By the method of the largest remainder; of equal ones, the name that comes first has it.
    """
    total = sum(uses.values())
    if not total:
        return {}
    parts = {name: amount * use // total for name, use in uses.items()}
    left = amount - sum(parts.values())
    by_remainder = sorted(uses, key=lambda name: (-(amount * uses[name] % total), name))
    for name in by_remainder[:left]:
        parts[name] += 1
    return parts


def charges(days: Mapping[str, Counts], quantities: Iterable[str]) -> dict[str, dict[str, Counts]]:
    """By member and day, its part of each of a group's `quantities` (amounts by day)."""
    waiting = dict.fromkeys(quantities, 0)
    charged: dict[str, dict[str, Counts]] = {}
    for day, counts in sorted(days.items()):
        uses = {
            name.removeprefix(USED_BY): count
            for name, count in counts.items()
            if name.startswith(USED_BY) and count > 0
        }
        for quantity in waiting:
            waiting[quantity] += counts.get(quantity, 0)
        if not uses:
            continue
        parts = {quantity: split(amount, uses) for quantity, amount in waiting.items()}
        for member in uses:
            mine = {quantity: part[member] for quantity, part in parts.items()}
            charged.setdefault(member, {})[day] = mine
        waiting = dict.fromkeys(waiting, 0)
    return charged
