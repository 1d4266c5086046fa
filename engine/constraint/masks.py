"""Which tokens the next draws of sequences may be, by their grammars.

A mask depends on all tokens before it. Where a step is launched ahead, the newest one is drawn by
the step before, which is waited for once this one's layers are in the device's queue: so the masks
are found while it computes them. On a CPU, finding and computing share the cores, and nothing would
be gained by doing both at once: `Turns` have found them when the step was planned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.constraint.follower import Follower, Followers
from engine.grammar.vocabulary import Vocabulary, Words
from engine.sequences.plan import Draw
from engine.sequences.sequence import Sequence

_MOST_STEP_SECONDS: Final = 0.005
"""What masks of one step may take of a thread beyond what is usual, before no more are found."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """What some rows of a step may draw."""

    places: npt.NDArray[np.int64]  # [num_rows]: as in `kernels.types.Masks`
    words: Words  # [num_masked, num_words]
    failures: dict[int, str]
    """Of the step's rows, those whose grammar allows nothing, or cannot go on: why."""
    late: frozenset[int]
    """Of the step's rows, those behind drafts whose masks would have taken too long."""


class Masks:
    """Asks what goes along with sequences that have grammars."""

    def __init__(self, vocabulary: Vocabulary, followers: Followers | None = None) -> None:
        """`followers` may be asked by others as well."""
        self._vocabulary = vocabulary
        self._followers = followers or Followers()

    def of(self, draws: Ordered[Draw], drawn: Mapping[Sequence, int]) -> RowMasks | None:
        """The masks of `draws`; `None` where none has a grammar.

        `drawn` are the tokens of the step before that the sequences do not have yet. What lies
        behind a guess that the grammar does not allow is not masked, for it is never drawn.
        """
        rows = [row for row, draw in enumerate(draws) if draw.sequence.grammar is not None]
        if not rows:
            return None
        words = self._vocabulary.new_words(len(rows))
        failures: dict[int, str] = {}
        late: set[int] = set()
        for place, row in enumerate(rows):
            draw = draws[row]
            if draw.drafts:
                continue  # its first row has done it
            follower = self._followers.of(draw.sequence, drawn.get(draw.sequence))
            drafts = _drafts_behind(draws, row)
            own = words[place : place + len(drafts) + 1]
            num_late = follower.fill(own, drafts)
            own &= follower.drawable
            end = row + len(own)
            late.update(range(end - num_late, end))
            if (failure := follower.failure()) is not None:
                failures[row] = failure
        for place in np.flatnonzero(~words.any(axis=1)).tolist():
            failures.setdefault(rows[place], "the grammar allows no token of this model here")
        places = np.full(len(draws), -1)
        places[rows] = np.arange(len(rows))
        return RowMasks(places, words, failures, frozenset(late))


def _drafts_behind(draws: Ordered[Draw], row: int) -> tuple[int, ...]:
    """What is drafted behind the newest token of a sequence whose first draw is that of `row`."""
    drafts: tuple[int, ...] = ()
    for draw in draws[row + 1 :]:
        if not draw.drafts:
            break
        drafts = draw.drafts
    return drafts


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
