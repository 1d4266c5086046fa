"""A grammar as it is written: what `llguidance` makes of it, and how much it may cost.

Whoever writes a grammar decides how long it takes to compile, and to find out what it allows. Both
are bounded: by counts of the library's own, and where these do not hold, by a thread's time. So a
hostile one ends with an error, and others wait for little of it.
"""

from __future__ import annotations

from functools import cache, partial
from time import thread_time
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from engine.api import Grammar
from engine.grammar.stack import with_deep_stack

if TYPE_CHECKING:  # it has no such name when it runs
    from llguidance._lib import JsonCompileOptions

LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=50_000,
    step_max_items=10_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""By the library's own figures 10 ms to build a lexer, 4 ms for a mask, and 40 MB for all that is
remembered."""

_MOST_CHECK_SECONDS: Final = 0.25
"""Of a thread: what a grammar may take to be compiled."""

_JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": r"[ \n\r\t]{0,64}"}
"""A model that is at a loss could write blanks for ever between two tokens of JSON."""

_MOST_CHARACTERS: Final = 400
"""Of an error: the library repeats the grammar in some."""


def serialized(grammar: Grammar) -> str:
    """What `LLMatcher` takes. Raises `ValueError` for JSON that is nested too deeply for it."""
    if grammar.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(grammar.source, _JSON_OPTIONS)
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    return LLMatcher.grammar_from_lark(grammar.source)


def problem_of(grammar: Grammar) -> str | None:
    """Why a grammar cannot be compiled, for whatever model; `None` where it can.

    It may take a second of a hostile one. Python's lock is dropped for it.
    """
    return with_deep_stack(partial(_problem_of, grammar))


def _problem_of(grammar: Grammar) -> str | None:
    began = thread_time()
    try:
        matcher = LLMatcher(_bytes(), serialized(grammar), log_level=0, limits=LIMITS)
    except ValueError as error:
        return shortened(str(error))
    if matcher.is_error():
        return shortened(matcher.get_error())
    if thread_time() - began > _MOST_CHECK_SECONDS:
        return "it takes too long to compile"
    return None


def shortened(message: str) -> str:
    """The first line of what the library says; the rest shows its own state."""
    return message.strip().partition("\n")[0][:_MOST_CHARACTERS]


@cache
def _bytes() -> LLTokenizer:
    """A vocabulary of all bytes, and an end: it needs no model."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))


class _Bytes:
    """What `TokenizerWrapper` reads of a tokenizer."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
