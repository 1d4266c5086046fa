"""Which tokens the next draws of sequences may be, by their grammars.

A mask depends on all tokens before it. Where a step is launched ahead, the newest one is drawn by
the step before, which is waited for once this one's layers are in the device's queue: so the masks
are found while it computes them. On a CPU, finding and computing share the cores, and nothing would
be gained by doing both at once: `engine.constraint.mask_turns` has found them when the step was
planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.constraint.follower import Followers
from engine.grammar.vocabulary import Vocabulary, Words
from engine.sequences import sequence as schedule
from engine.sequences.plan import Draw


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

    def of(self, draws: Sequence[Draw], drawn: Mapping[schedule.Sequence, int]) -> RowMasks | None:
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


def _drafts_behind(draws: Sequence[Draw], row: int) -> tuple[int, ...]:
    """What is drafted behind the newest token of a sequence whose first draw is that of `row`."""
    drafts: tuple[int, ...] = ()
    for draw in draws[row + 1 :]:
        if not draw.drafts:
            break
        drafts = draw.drafts
    return drafts
