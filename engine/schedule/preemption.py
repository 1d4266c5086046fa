"""Who is preempted when blocks run out: for a sequence that grows, or for a request that waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from engine.schedule.admission import Admission
from engine.schedule.lifecycle import Lifecycle
from engine.sequences.group import SequenceGroup


def victim_of_growth(groups: Iterable[SequenceGroup], lifecycle: Lifecycle) -> SequenceGroup:
    """Which of the running `groups` makes room for one of their sequences.

    It is the newest of the most over-served tenant; one that is spared only where a reserve has
    broken its promise.
    """

    def priority(group: SequenceGroup) -> tuple[bool, tuple[float, float], int]:
        rank = lifecycle.fairness.rank(lifecycle.account(group))
        return not group.is_spared, rank, group.arrival

    return max(groups, key=priority)


def victims_of_admission(
    admission: Admission, price: float, planned: Collection[str], lifecycle: Lifecycle
) -> list[SequenceGroup]:
    """Who has to yield to a waiting group, whose admission costs `price`: first the first of them.

    Neither those whose ids are `planned`, as parts of the step being planned, nor those that are
    spared.
    """
    spared = {group.request_id for group in lifecycle.running.values() if group.is_spared}
    return lifecycle.fairness.yielding(
        lifecycle.account(admission.group),
        price,
        lifecycle.accounts.running.values(),
        spared.union(planned),
    )
