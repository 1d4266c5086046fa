"""Grammars in GBNF, llama.cpp's form of EBNF, which vLLM's clients send as well as Lark."""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark
from msgspec import structs

from engine.api import Grammar
from engine.grammar.complaints import reason
from engine.validation import excess_of

_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_MOST_BYTES = 16_384
"""It is read in Python, whose lock others need as well."""


def is_gbnf(grammar: Grammar) -> bool:
    """Whether a grammar that is said to be in Lark has rules of GBNF, `root ::= ...`."""
    return grammar.kind == "lark" and _RULE.search(grammar.source) is not None


def in_lark(grammar: Grammar) -> Grammar:
    """The same grammar in Lark. A worker's work.

    Raises `ValueError` that says what is wrong with it, or that it is too large.
    """
    if len(grammar.source.encode()) > _MOST_BYTES:
        raise ValueError(f"in GBNF it may have {_MOST_BYTES} bytes at most")
    try:
        read = structs.replace(grammar, source=gbnf_to_lark(grammar.source))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except GbnfToLarkError as error:
        raise ValueError(reason(str(error))) from None
    except Exception as error:  # noqa: BLE001
        # Rules that are missing are told by plain ones, a backslash at the end by an index.
        raise ValueError(reason(str(error))) from None
    if excess := excess_of(read):
        raise ValueError(f"in Lark it may have {excess}")
    return read
