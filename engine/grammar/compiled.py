"""A grammar that is compiled for a model's vocabulary."""

from __future__ import annotations

from functools import partial
from time import thread_time

from llguidance import LLMatcher

from engine.api import EngineError, Grammar
from engine.grammar.complaints import reason
from engine.grammar.source import LIMITS, serialized, with_deep_stack
from engine.grammar.vocabulary import Vocabulary

_MOST_MASK_SECONDS = 0.015
"""Of a thread, for the first mask: others wait as long for each one behind it."""


class GrammarError(EngineError):
    """A grammar cannot be compiled; the message says why."""


class CompiledGrammar:
    """Hands out matchers, one for each sequence, which share what they learn on their way."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Raises `GrammarError`. Takes its time, most of it without Python's lock."""
        self.is_spent = False
        """Whether a matcher has reached a limit, as others may by what they share."""
        self.drawable = vocabulary.drawable(grammar.tokens)
        """All that may be drawn anywhere in it."""
        self._first = with_deep_stack(partial(_first_matcher, grammar, vocabulary))

    def matcher(self) -> LLMatcher:
        """One that has seen no token."""
        return self._first.deep_copy()


def _first_matcher(grammar: Grammar, vocabulary: Vocabulary) -> LLMatcher:
    try:
        first = LLMatcher(vocabulary.tokenizer, serialized(grammar), log_level=0, limits=LIMITS)
    except ValueError as error:
        raise GrammarError(reason(str(error))) from error
    began = thread_time()
    words = vocabulary.new_words(1)
    first.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
    if thread_time() - began > _MOST_MASK_SECONDS:
        raise GrammarError("it takes too long to find what it allows")
    if first.is_error():
        raise GrammarError(reason(first.get_error()))
    return first
