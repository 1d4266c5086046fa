"""Pieces of grammars in `llguidance`'s Lark, as expressions to put others together of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from llguidance import regex_to_lark

from engine.api import Grammar
from engine.grammar.source import JSON_OPTIONS

ANY_TEXT = "/(?s:.*)/"
BLANKS = f"/{JSON_OPTIONS['whitespace_pattern']}/"
"""What may stand between two tokens of JSON."""


def literal(text: str) -> str:
    """Just this text: strings of Lark are written like those of JSON."""
    return json.dumps(text)


def token(token_id: int) -> str:
    """A control token; see `Grammar.tokens`."""
    return f"<[{token_id}]>"


def regex(pattern: str) -> str:
    """What a regular expression matches from end to end."""
    return f"/{regex_to_lark(pattern, '')}/" if pattern else '""'


def lacking(*texts: str) -> str:
    """A terminal: any text in which none of these stands."""
    no = (f" & ~({ANY_TEXT} {literal(text)} {ANY_TEXT})" for text in texts)
    return ANY_TEXT + "".join(no)


def json_value(
    schema: Mapping[str, Any], *, lenient: bool = False, escapes: str | None = None
) -> str:
    """JSON that is valid by a schema; a `lenient` one holds no keyword that cannot be held.

    `escapes` are the letters that may stand behind a backslash, if not all.
    """
    options: dict[str, Any] = {"lenient": True} if lenient else {}
    if escapes is not None:
        options["json_allowed_escapes"] = escapes
    return _json(msgspec.json.encode(schema).decode(), **options)


def whole(grammar: Grammar) -> str:
    """What a grammar derives, which compiles by itself."""
    if grammar.kind == "json_schema":
        return _json(grammar.source)
    if grammar.kind == "regex":
        return regex(grammar.source)
    return f"%lark {{\n{grammar.source}\n}}"


def _json(source: str, **options: Any) -> str:
    source = source.strip().replace("\n", " ")  # one line is one definition, see the door
    if not source.startswith("{"):
        return f"%json {source}"
    members = source[1:-1].strip()
    # The last one of a name is the one that counts.
    guidance = json.dumps({**JSON_OPTIONS, **options})
    return f'%json {{{members}{", " if members else ""}"x-guidance": {guidance}}}'
