"""Which drafts are right: those that are drawn behind what is before them.

What is drawn depends on a sequence's tokens, its seed and the position alone. So whatever was
drafted, the tokens are those that one step for each would have drawn.
"""

from __future__ import annotations

from engine.sequences.plan import Sampled
from engine.sequences.sequence import Sequence


def verify(
    sequence: Sequence, drafts: tuple[int, ...], first: int, sampled: Sampled
) -> tuple[int, int]:
    """Take over the tokens drawn behind right drafts; returns how many, and of how many drafts.

    That in row `first` is drawn behind what is known, and each of the others behind one draft more.
    One in whose place there is a failure ends the sequence.
    """
    count = num_right = 0
    for row, draft in enumerate((*drafts, None), first):
        if row in sampled.failures:
            sequence.fail(sampled.failures[row])
            break
        sequence.append(sampled.token_ids[row])
        count += 1
        if sampled.token_ids[row] != draft or row + 1 in sampled.late:
            break
        num_right += 1
        if sequence.finish_reason is not None:
            break
    return count, num_right
