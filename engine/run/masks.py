"""Which tokens the next draws of sequences may be, by their grammars.

A mask depends on all tokens before it. Where a step is launched ahead, the newest one is drawn by
the step before, which is waited for once this one's layers are in the device's queue: so the masks
are found while it computes them. On a CPU, finding and computing share the cores, and nothing would
be gained by doing both at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import thread_time
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from engine.grammar.compiled import CompiledGrammar
from engine.grammar.source import shortened
from engine.grammar.vocabulary import Vocabulary, Words
from engine.schedule import sequence as schedule
from engine.schedule.plan import Draw

_USUAL_SECONDS = 0.002
"""That a mask may take of a thread: most take a hundredth of it."""
_MOST_UNUSUAL_SECONDS = 0.1
"""What all masks of a sequence together may take beyond that: others wait for them."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """What some rows of a step may draw."""

    rows: npt.NDArray[np.int64]  # [num_masked]
    words: Words  # [num_masked, num_words]
    failures: dict[int, str]
    """Of the step's rows, those whose grammar allows nothing, or cannot go on: why."""


class Masks:
    """Follows sequences that have grammars, whose lists of tokens grow and never change."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._followers: WeakKeyDictionary[schedule.Sequence, Follower] = WeakKeyDictionary()

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
        for place, row in enumerate(rows):
            draw = draws[row]
            if draw.drafts:
                continue  # its first row has done it
            follower = self._follow(draw.sequence, drawn.get(draw.sequence))
            drafts = _drafts_behind(draws, row)
            own = words[place : place + len(drafts) + 1]
            failure = follower.fill(own, drafts)
            own &= follower.drawable
            if failure is not None:
                failures[row] = failure
        for place in np.flatnonzero(~words.any(axis=1)).tolist():
            failures.setdefault(rows[place], "the grammar allows no token of this model here")
        return RowMasks(np.array(rows, np.int64), words, failures)

    def _follow(self, sequence: schedule.Sequence, newest: int | None) -> Follower:
        """What goes along with a sequence, behind all its tokens."""
        assert sequence.grammar is not None
        follower = self._followers.get(sequence)
        if follower is None:
            follower = self._followers[sequence] = Follower(sequence, sequence.grammar)
        follower.advance(sequence, newest)
        return follower


class Follower:
    """A matcher that goes along with a sequence."""

    def __init__(self, sequence: schedule.Sequence, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._unusual = 0.0
        """Seconds that masks have taken beyond what is usual."""
        self._begin(sequence)

    @property
    def drawable(self) -> Words:
        """All that may be drawn anywhere in its grammar."""
        return self._grammar.drawable

    def _begin(self, sequence: schedule.Sequence) -> None:
        self._matcher: LLMatcher = self._grammar.matcher()
        self._length = sequence.num_prompt_tokens
        """Tokens that it has seen, or passed over."""
        self._newest: int | None = None
        """The last of them, if that was not known to the host yet."""

    def advance(self, sequence: schedule.Sequence, newest: int | None) -> None:
        """Take over what has come since, and behind what is known `newest`."""
        known = sequence.token_ids
        if self._newest is not None and known[self._length - 1 : self._length] != [self._newest]:
            self._begin(sequence)  # the step that drew it was undone
        tokens = known[self._length :] if newest is None else [*known[self._length :], newest]
        if not self._matcher.is_stopped():  # a step launched ahead goes past the end
            self._matcher.consume_tokens(tokens)
        self._length += len(tokens)
        self._newest = newest

    def fill(self, words: Words, drafts: Sequence[int]) -> str | None:
        """Find the mask behind all tokens, and behind each of `drafts` that is allowed.

        `words` is [1 + len(drafts), num_words]. Returns why it cannot go on, if so.
        """
        began = thread_time()
        num_right = 0
        self._find(words[0])
        for draft in drafts:
            if not self._matcher.try_consume_tokens([draft]):
                break
            num_right += 1
            self._find(words[num_right])
        if num_right:
            self._matcher.rollback(num_right)
        spent = thread_time() - began
        self._unusual += max(0.0, spent - _USUAL_SECONDS * (1 + num_right))
        return self._failure()

    def _find(self, words: Words) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

    def _failure(self) -> str | None:
        if self._matcher.is_error():
            reason = shortened(self._matcher.get_error())
        elif self._unusual > _MOST_UNUSUAL_SECONDS:
            reason = "it takes too long to find what it allows"
        else:
            return None
        self._grammar.is_spent = True
        return f"the grammar cannot go on: {reason}"


def _drafts_behind(draws: Sequence[Draw], row: int) -> tuple[int, ...]:
    """What is drafted behind the newest token of a sequence whose first draw is that of `row`."""
    drafts: tuple[int, ...] = ()
    for draw in draws[row + 1 :]:
        if not draw.drafts:
            break
        drafts = draw.drafts
    return drafts
