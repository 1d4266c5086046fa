"""Matchers that go along with sequences."""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLMatcher

from engine.grammar.compiled import CompiledGrammar
from engine.grammar.complaints import reason
from engine.grammar.vocabulary import Words
from engine.sequences import sequence as schedule

_USUAL_SECONDS = 0.002
"""That a mask may take of a thread: most take a hundredth of it."""
_SLOW_SECONDS = 0.005
"""Beyond what is usual: more are no accident."""
_MOST_UNUSUAL_SECONDS = 0.1
"""What all masks of a sequence together may take beyond that: others wait for them."""
_MOST_DRAFT_SECONDS = 0.004
"""That masks behind drafts may take of a thread before no more of them are found in a step."""


class Followers:
    """Of sequences that have grammars, whose lists of tokens grow and never change."""

    def __init__(self) -> None:
        self._followers: WeakKeyDictionary[schedule.Sequence, Follower] = WeakKeyDictionary()

    def of(self, sequence: schedule.Sequence, newest: int | None = None) -> Follower:
        """What goes along with a sequence, behind its tokens and `newest`, if it lacks that yet."""
        assert sequence.grammar is not None
        follower = self._followers.get(sequence)
        if follower is None:
            follower = self._followers[sequence] = Follower(sequence, sequence.grammar)
        follower.advance(sequence, newest)
        return follower

    def known(self, sequence: schedule.Sequence) -> Follower | None:
        """The same where there is one, behind what it has seen so far."""
        return self._followers.get(sequence)


class Follower:
    """A matcher that goes along with a sequence."""

    def __init__(self, sequence: schedule.Sequence, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self.unusual_seconds = 0.0
        """What has been taken of a thread beyond what is usual."""
        self.drawable = grammar.drawable
        """All that may be drawn anywhere in its grammar."""
        self._mask = np.empty_like(grammar.drawable)
        self._address: int = self._mask.ctypes.data
        self._begin(sequence)

    @property
    def is_slow(self) -> bool:
        """Whether others have had to wait for its masks."""
        return self.unusual_seconds > _SLOW_SECONDS

    def _begin(self, sequence: schedule.Sequence) -> None:
        self._matcher: LLMatcher = self._grammar.matcher()
        self._length = sequence.num_prompt_tokens
        """Tokens that it has seen, or passed over."""
        self._newest: int | None = None
        """The last of them, if that was not known to the host yet."""
        self._is_found = False
        """Whether the mask is the one behind all of them."""

    def advance(self, sequence: schedule.Sequence, newest: int | None) -> None:
        """Take over what has come since, and behind what is known `newest`."""
        known = sequence.token_ids
        if self._newest is not None and known[self._length - 1 : self._length] != [self._newest]:
            self._begin(sequence)  # the step that drew it was undone
        tokens = known[self._length :] if newest is None else [*known[self._length :], newest]
        if tokens:
            self._is_found = False
        if tokens and not self._matcher.is_stopped():  # a step launched ahead goes past the end
            began = thread_time()
            self._matcher.consume_tokens(tokens)
            self._spend(began, len(tokens))
        self._length += len(tokens)
        self._newest = newest

    def find(self) -> Words:
        """The mask behind all tokens."""
        if not self._is_found:
            began = thread_time()
            self.compute(self._address)
            self._spend(began, 1)
            self._is_found = True
        return self._mask

    def fill(self, words: Words, drafts: Sequence[int]) -> int:
        """Find the mask behind all tokens, and behind each of `drafts` that is allowed.

        `words` is [1 + len(drafts), num_words]. Returns behind how many drafts none was looked for,
        as those before them took too long.
        """
        words[0] = self.find()
        if not drafts:
            return 0
        began, address = thread_time(), words.ctypes.data
        num_right = num_late = 0
        for draft in drafts:
            if thread_time() - began > _MOST_DRAFT_SECONDS:
                num_late = len(drafts) - num_right
                break
            if not self._matcher.try_consume_tokens([draft]):
                break
            num_right += 1
            self.compute(address + num_right * self._mask.nbytes)
        if num_right:
            self._matcher.rollback(num_right)
        self._spend(began, 1 + num_right)
        return num_late

    def forced(self, most: int) -> tuple[int, ...]:
        """The next tokens, at most so many, as far as the grammar leaves no choice of them."""
        began = thread_time()
        tokens = self._matcher.compute_ff_tokens()
        self._spend(began, 1)
        return tuple(tokens[:most])

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these, from the first one on, may come next; fewer where that takes long.

        One by one, as `validate_tokens` knows no limits: an ambiguous grammar took it seconds.
        """
        began = thread_time()
        count = 0
        for token in tokens:
            if thread_time() - began > _USUAL_SECONDS or not self._matcher.try_consume_tokens(
                [token]
            ):
                break
            count += 1
        if count:
            self._matcher.rollback(count)
        self._spend(began, 1)
        return count

    def failure(self) -> str | None:
        """Why it cannot go on, if so."""
        if self._matcher.is_error():
            minded = reason(self._matcher.get_error())
        elif self.unusual_seconds > _MOST_UNUSUAL_SECONDS:
            minded = "it takes too long to find what it allows"
        else:
            return None
        self._grammar.is_spent = True
        return f"the grammar cannot go on: {minded}"

    def _spend(self, began: float, usual: int) -> None:
        """Count what it took since then, beyond so many masks of usual ones."""
        self.unusual_seconds += max(0.0, thread_time() - began - _USUAL_SECONDS * usual)

    def compute(self, address: int) -> None:
        """Find the mask behind all that the matcher has seen; there is room for it at `address`."""
        self._matcher.unsafe_compute_mask_ptr(address, self._mask.nbytes)
