"""Takes planned steps back that were not computed, or not to their end."""

from __future__ import annotations

from collections.abc import Collection

from engine.schedule.lifecycle import Lifecycle
from engine.sequences.plan import StepPlan


def undo(plans: list[StepPlan], lifecycle: Lifecycle, keep: Collection[int]) -> None:
    """Let everything wait that runs, as if it had never been planned in `plans`.

    What earlier steps have computed is found again, and so are the blocks `keep`: they are older.
    """
    for group in list(lifecycle.running.values()):
        for sequence in group.sequences:
            sequence.num_drawn = 0
        lifecycle.preempt(group, may_swap=False)
    lost = {slot for plan in plans for _, slot in plan.transfers.swap_outs}
    for group in lifecycle.live.values():
        if group.saved is not None and not lost.isdisjoint(group.saved.slots.values()):
            lifecycle.forget_saved(group)
    lifecycle.transfers.abandon()
    lifecycle.tiers.host.forget(lost)
    findable = lifecycle.tiers.take_fresh().union(*(plan.findable for plan in plans))
    lifecycle.pool.forget(findable.difference(keep))
