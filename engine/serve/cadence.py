"""When tokens are shown: at once, or one by one at a pace that tells nothing of how they were made.

Several tokens of one step tell that guesses were right, and so what an answer has in common with
its prompt or an earlier answer: who sees the packets of an encrypted stream can tell what is talked
of (arXiv 2411.01076). Spaced evenly, and no closer than single steps would come, they do not.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec

from engine.api import TokenDelta


class Cadence:
    """Deltas of a stream on their way to its reader, in the order in which they are due."""

    def __init__(self, interval_seconds: float, clock: Callable[[], float]) -> None:
        """At least `interval_seconds` between two tokens of a sequence, by `clock`; 0: none."""
        self._interval = interval_seconds
        self._clock = clock
        self._waiting: list[tuple[float, int, TokenDelta]] = []
        self._num_pushed = 0
        self._newest: dict[int, float] = {}
        """Of each sequence: when its newest token is due."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def push(self, delta: TokenDelta) -> None:
        """Take a delta over. What comes of it is due behind what its sequence had before."""
        if not self._interval:
            self._add(0.0, delta)
            return
        for part in _tokens(delta):
            newest, now = self._newest.get(part.index), self._clock()
            due = now
            if newest is not None:
                due = max(now, newest + self._interval if part.token_ids else newest)
            self._newest[part.index] = due
            self._add(due, part)

    def seconds_left(self) -> float:
        """Until the next delta is due, of which there is one; 0 if it is."""
        return max(0.0, self._waiting[0][0] - self._clock()) if self._interval else 0.0

    def pop(self) -> TokenDelta:
        """The next delta."""
        return heapq.heappop(self._waiting)[2]

    def _add(self, due: float, delta: TokenDelta) -> None:
        self._num_pushed += 1
        heapq.heappush(self._waiting, (due, self._num_pushed, delta))


def _tokens(delta: TokenDelta) -> list[TokenDelta]:
    """A delta for each of its tokens, the last of which ends what it ends.

    Hypotheses of a beam search come whole: nobody has guessed for them.
    """
    if len(delta.token_ids) < 2 or delta.score is not None:
        return [delta]
    parts = [
        msgspec.structs.replace(
            delta,
            token_ids=[token_id],
            logprobs=None if delta.logprobs is None else [delta.logprobs[place]],
            finish_reason=None,
        )
        for place, token_id in enumerate(delta.token_ids)
    ]
    parts[-1] = msgspec.structs.replace(parts[-1], finish_reason=delta.finish_reason)
    return parts
