"""Matchers that go along with sequences."""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time
from weakref import WeakKeyDictionary

from llguidance import LLMatcher

from engine.grammar.compiled import CompiledGrammar
from engine.grammar.source import shortened
from engine.grammar.vocabulary import Words
from engine.schedule import sequence as schedule

_USUAL_SECONDS = 0.002
"""That a mask may take of a thread: most take a hundredth of it."""
_MOST_UNUSUAL_SECONDS = 0.1
"""What all masks of a sequence together may take beyond that: others wait for them."""


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


class Follower:
    """A matcher that goes along with a sequence."""

    def __init__(self, sequence: schedule.Sequence, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._unusual = 0.0
        """Seconds that have been taken beyond what is usual."""
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
        if tokens and not self._matcher.is_stopped():  # a step launched ahead goes past the end
            began = thread_time()
            self._matcher.consume_tokens(tokens)
            self._spend(began, len(tokens))
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
        self._spend(began, 1 + num_right)
        return self._failure()

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

    def _spend(self, began: float, usual: int) -> None:
        """Count what it took since then, beyond so many masks of usual ones."""
        self._unusual += max(0.0, thread_time() - began - _USUAL_SECONDS * usual)

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
