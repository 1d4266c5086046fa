"""A grammar that is compiled for a model's vocabulary."""

from __future__ import annotations

from time import thread_time

from llguidance import LLMatcher

from engine.api import EngineError, Grammar
from engine.grammar.source import LIMITS, serialized, shortened
from engine.grammar.vocabulary import Vocabulary

_MOST_MASK_SECONDS = 0.025
"""Of a thread, for the first mask: others wait as long for each one behind it."""


class GrammarError(EngineError):
    """A grammar cannot be compiled; the message says why."""


class CompiledGrammar:
    """Hands out matchers, one for each sequence, which share what they learn on their way."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Raises `GrammarError`. Takes its time, most of it without Python's lock."""
        self.is_spent = False
        """Whether a matcher has reached a limit, as others may by what they share."""
        try:
            self._first = LLMatcher(
                vocabulary.tokenizer, serialized(grammar), log_level=0, limits=LIMITS
            )
        except ValueError as error:
            raise GrammarError(shortened(str(error))) from error
        began = thread_time()
        words = vocabulary.new_words(1)
        self._first.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if thread_time() - began > _MOST_MASK_SECONDS:
            raise GrammarError("it takes too long to find what it allows")
        if self._first.is_error():
            raise GrammarError(shortened(self._first.get_error()))

    def matcher(self) -> LLMatcher:
        """One that has seen no token."""
        return self._first.deep_copy()
