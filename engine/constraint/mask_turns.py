"""Whose masks are found for a step, where some take long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from engine.constraint.follower import Follower, Followers
from engine.sequences.sequence import Sequence

_MOST_STEP_SECONDS: Final = 0.005
"""What masks of one step may take of a thread beyond what is usual, before no more are found."""


class Turns:
    """Finds masks before a step is planned, until they have taken long; others sit it out.

    All sequences of a step wait for each of its masks. How long one takes is known once it has been
    found. So those go first whose tenant's masks have taken least: who is in nobody's way waits for
    none of those that are.
    """

    def __init__(self, followers: Followers) -> None:
        """`followers` keep what is found, for whoever draws by it."""
        self._followers = followers

    def __call__(self, sequences: list[Sequence]) -> list[Sequence]:
        """Of those that may decode: which are to. One at least, whose newest tokens are known."""
        held = [one for one in sequences if one.grammar is not None and one.finish_reason is None]
        waiting = set(self._waiting(held)) if held else ()
        return [one for one in sequences if one not in waiting]

    def _waiting(self, held: list[Sequence]) -> Iterator[Sequence]:
        left = _MOST_STEP_SECONDS
        for sequence, known in self._in_order(held):
            if sequence.num_drawn:  # its newest token is not known, and its mask found by the step
                if known is not None and known.is_slow:
                    yield sequence
            elif left < 0:
                yield sequence
            else:
                before = 0.0 if known is None else known.unusual_seconds
                follower = self._followers.of(sequence)
                follower.find()
                left -= follower.unusual_seconds - before

    def _in_order(self, held: list[Sequence]) -> list[tuple[Sequence, Follower | None]]:
        pairs = [(sequence, self._followers.known(sequence)) for sequence in held]
        if not any(known is not None and known.unusual_seconds for _, known in pairs):
            return pairs
        tenants: defaultdict[str, float] = defaultdict(float)
        for sequence, known in pairs:
            tenants[sequence.request.tenant] += known.unusual_seconds if known else 0.0
        return sorted(
            pairs,
            key=lambda pair: (
                tenants[pair[0].request.tenant],
                pair[1].unusual_seconds if pair[1] else 0.0,
            ),
        )
