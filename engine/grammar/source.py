"""A grammar as it is written: what `llguidance` makes of it, and how much it may cost.

Whoever writes a grammar decides how long it takes to compile, and to find out what it allows. Both
are bounded: by counts of the library's own, and where these do not hold, by a thread's time. So a
hostile one ends with an error, and others wait for little of it. And `llguidance` recurses once for
each rule that leads to another, without a bound of its own: on a usual stack a grammar of some ten
kilobytes would end the process.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import cache, partial
from time import thread_time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from msgspec import structs

from engine.api import Grammar
from engine.grammar.complaints import NOTHING, TOO_MUCH, located, reason
from engine.grammar.keywords.references import Work
from engine.grammar.keywords.rewriting import rewritten
from engine.grammar.schemas import (
    MOST_REMAINDERS,
    bound_beyond,
    has_too_many_remainders,
    inexact_constant,
)
from engine.grammar.together import crowded

if TYPE_CHECKING:  # it has no such name when it runs
    from llguidance._lib import JsonCompileOptions


import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar

LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=50_000,
    step_max_items=5_000,
    max_items_in_row=1_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""By the library's own figures 10 ms to build a lexer, 4 ms for a mask, and 40 MB for all that is
remembered. Items of a row are looked for one by one, which takes their square: with these bounds
9 ms at most were seen."""

_MOST_CHECK_SECONDS: Final = 0.25
"""Of a thread: what a grammar may take to be compiled."""

JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": r"[ \n\r\t]{0,64}"}
"""A model that is at a loss could write blanks for ever between two tokens of JSON."""

_SLOW: Final = "it takes too long to compile"
_TOO_FINE: Final = f"'multipleOf' may have {MOST_REMAINDERS} remainders at most"
_EMBEDDED: Final = re.compile(r"%json\s*")
_decoder: Final = json.JSONDecoder()
_STACK_BYTES: Final = 256 << 20
"""Addresses, and memory only as far as it is used. A quarter of it was enough for the deepest
grammars of 128 KiB that were found; the door takes half of that."""
_USUAL_SECONDS: Final = 0.01
_UNUSUAL_NICENESS: Final = 10
"""Of what takes longer, beyond the process's own: where others compute, a tenth of a processor."""
_Result = TypeVar("_Result")
_starting = threading.Lock()


def serialized(grammar: Grammar) -> str:
    """What `LLMatcher` takes. Raises `ValueError` for JSON that is nested too deeply for it."""
    body = _serialized_body(grammar)
    if not grammar.preamble:
        return body
    if grammar.kind == "lark":
        part = _Part(lark_grammar=body)
    else:
        [part] = msgspec.json.decode(body, type=_Parts).grammars
    part.name = "body"
    main = _Part(lark_grammar=f"start: preamble @body\n{grammar.preamble}")
    return msgspec.json.encode(_Parts(grammars=[main, part])).decode()


class _Part(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    json_schema: msgspec.Raw = msgspec.Raw(b"null")
    lark_grammar: str | None = None


class _Parts(msgspec.Struct):
    grammars: list[_Part]


def _serialized_body(grammar: Grammar) -> str:
    if grammar.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(held(grammar.source), JSON_OPTIONS)
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    return LLMatcher.grammar_from_lark(_held_within(grammar.source))


def held(source: str) -> str:
    """A schema's JSON in words that `llguidance` knows, as far as there are some."""
    with contextlib.suppress(ValueError, RecursionError):
        return _reworded(source, json.loads(source), Work())
    return source


def _reworded(source: str, schema: Any, work: Work) -> str:
    words = json.dumps(rewritten(schema, work)[0])
    return source if words == json.dumps(schema) else words


def _held_within(source: str) -> str:
    """The same of the schemas in a Lark grammar, but for those that are held as far as it goes."""
    pieces, end, work = [], 0, Work()
    for start, stop, schema in _schemas_within(source):
        if start >= end and not _is_lenient(schema):
            with contextlib.suppress(RecursionError):
                pieces += [source[end:start], _reworded(source[start:stop], schema, work)]
                end = stop
    return "".join((*pieces, source[end:]))


def _is_lenient(schema: Any) -> bool:
    guidance = schema.get("x-guidance") if isinstance(schema, dict) else None
    return isinstance(guidance, dict) and bool(guidance.get("lenient"))


def _unheld(source: str) -> str | None:
    """The first keyword of a schema that has no such words, and why."""
    with contextlib.suppress(ValueError, RecursionError):
        return rewritten(json.loads(source), Work())[1]
    return None


def problem_of(grammar: Grammar) -> str | None:
    """Why a grammar cannot be compiled, for whatever model, or derives nothing; else `None`.

    It may take a second of a hostile one. Python's lock is dropped for it.
    """
    return with_deep_stack(partial(_problem_of, grammar))


def _problem_of(grammar: Grammar) -> str | None:
    if grammar.kind != "json_schema":
        source = _held_within(grammar.source)
        schemas = [
            schema for text in (grammar.source, source) for *_, schema in _schemas_within(text)
        ]
        excess = next(filter(None, map(_excess, schemas)), None)
        return excess or _located(schemas, _complaint(grammar))
    schema = None
    with contextlib.suppress(ValueError, RecursionError):
        schema = json.loads(grammar.source)
        if excess := _excess(schema):
            return excess
        words, unheld = rewritten(schema, Work())
        if _excess(words):
            return unheld or TOO_MUCH
    return _located([schema], _complaint(grammar))


def _schemas_within(source: str) -> Iterator[tuple[int, int, Any]]:
    """Those that stand in a Lark grammar, with where they begin and end."""
    for found in _EMBEDDED.finditer(source):
        with contextlib.suppress(ValueError, RecursionError):
            schema, end = _decoder.raw_decode(source, found.end())
            yield found.end(), end, schema


def _excess(schema: Any) -> str | None:
    """What a schema has too much of, before any of it is made, and where."""
    wide = _too_wide(schema)
    if wide is not None and isinstance(schema, dict):
        return located(schema, wide, _too_wide)
    return wide or crowded(schema)


def _too_wide(schema: Any) -> str | None:
    """Which number of a schema cannot be held. Of a lenient one it need not be."""
    if not _is_lenient(schema):
        if bound := bound_beyond(schema):
            return f"'{bound}' is beyond 64 bits, and cannot be held"
        if constant := inexact_constant(schema):
            return f"'{constant}' has a number of more than 53 bits, and cannot be held"
    return _TOO_FINE if has_too_many_remainders(schema) else None


def _located(schemas: Iterable[Any], problem: str | None) -> str | None:
    """A problem with where it stands in that of the `schemas` which has it by itself."""
    if problem is None or problem == _SLOW:
        return problem
    for schema in schemas:
        if isinstance(schema, dict) and (own := _complaint_of_schema(schema)):
            return located(schema, own, _complaint_of_schema)
    return problem


def _complaint_of_schema(schema: Any) -> str | None:
    source = json.dumps(schema)
    return _complaint(Grammar(kind="json_schema", source=source))


def _complaint(grammar: Grammar) -> str | None:
    """What the library minds, wherever that is."""
    began = thread_time()
    try:
        matcher = LLMatcher(_bytes(), serialized(_any_model(grammar)), log_level=0, limits=LIMITS)
        matcher.compute_bitmask()
        minded = matcher.get_error() if matcher.is_error() else None
    except ValueError as error:
        minded = str(error)
    if minded is None:
        return _SLOW if thread_time() - began > _MOST_CHECK_SECONDS else None
    if minded.startswith("NoExtension"):
        return NOTHING
    return (grammar.kind == "json_schema" and _unheld(grammar.source)) or reason(minded)


def _any_model(grammar: Grammar) -> Grammar:
    """It with the only control token that `_bytes` has."""
    source, preamble, control = grammar.source, grammar.preamble, f"<[{_Bytes.control_token}]>"
    for token in grammar.tokens:
        source = source.replace(f"<[{token}]>", control)
        preamble = preamble.replace(f"<[{token}]>", control)
    return structs.replace(grammar, source=source, preamble=preamble)


@cache
def _bytes() -> LLTokenizer:
    """A vocabulary of all bytes, an end, and a control token: it needs no model."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))


class _Bytes:
    """What `TokenizerWrapper` reads of a tokenizer."""

    eos_token_id = 256
    control_token = 257
    bos_token_id = None
    special_token_ids = (256, 257)
    tokens = (*(bytes([value]) for value in range(256)), b"<end>", b"<control>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def with_deep_stack(work: Callable[[], _Result]) -> _Result:
    """What `work` returns or raises, done in a thread of its own; waits for it.

    What takes unusually long gives way to other threads, of this process and of others: a step of
    the model lasts as long as its slowest thread.
    """
    future: Future[_Result] = Future()
    thread = threading.Thread(target=_do, args=(work, future), name="grammar-compile")
    with _starting:  # the size is the process's: no other may set it back in between
        usual = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    if not wait([future], _USUAL_SECONDS).done:
        _give_way(thread)
    thread.join()
    return future.result()


def _do(work: Callable[[], _Result], future: Future[_Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)


def _give_way(thread: threading.Thread) -> None:
    """On Linux a thread has a priority of its own."""
    if thread.native_id is not None:
        with suppress(OSError):  # it has just ended, or the system knows no such thing
            niceness = os.getpriority(os.PRIO_PROCESS, 0) + _UNUSUAL_NICENESS
            os.setpriority(os.PRIO_PROCESS, thread.native_id, min(niceness, 19))
