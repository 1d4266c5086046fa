"""Pieces of grammars in `llguidance`'s Lark: expressions to put others together of, and tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


def not_begun_by(*texts: str) -> str:
    """What narrows a terminal: none of these stands at its beginning, but for white space."""
    return "".join(f" & ~(/\\s*/ {literal(text)} {ANY_TEXT})" for text in texts)


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


@dataclass(frozen=True)
class Tag:
    """JSON by a `schema`, or any, between texts of which `begin` begins with the `trigger`."""

    trigger: str
    begin: str
    schema: Mapping[str, Any] | None
    end: str

    @property
    def texts(self) -> tuple[str, str]:
        """What stands around the JSON."""
        return self.begin, self.end


def tag_grammar(tags: Sequence[Tag], tokens: Mapping[str, int]) -> Grammar:
    """Any text with any number of `tags`, for a model with these control tokens.

    That a trigger cannot be plain text it owes to a terminal that takes as little as it can.
    """
    rules = [f"TEXT: {ANY_TEXT}"]
    answers = []
    for index, trigger in enumerate(dict.fromkeys(tag.trigger for tag in tags)):
        bodies = (_body(tag, tokens) for tag in tags if tag.trigger == trigger)
        rules.append(f"body_{index}: {' | '.join(bodies)}")
        rules.append(f"trigger_{index}[lazy]: TEXT {literal(trigger)}")
        answers.append(f"trigger_{index} body_{index}")
        if trigger in tokens:
            answers.append(f"TEXT {token(tokens[trigger])} body_{index}")
    source = "\n".join(["start: tag* TEXT", f"tag: {' | '.join(answers)}", *rules])
    used = tuple(one for one in tokens.values() if token(one) in source)
    return Grammar(kind="lark", source=source, tokens=used)


def _body(tag: Tag, tokens: Mapping[str, int]) -> str:
    rest = tag.begin.removeprefix(tag.trigger)
    value = json_value(tag.schema or {})
    return f"{_spelled(rest, tokens)} {value} {_spelled(tag.end, tokens)}"


def _spelled(text: str, tokens: Mapping[str, int]) -> str:
    """A text in which what is a control token of the model's is that."""
    pieces = re.split(f"({'|'.join(map(re.escape, tokens))})", text) if tokens else [text]
    return " ".join(
        token(tokens[piece]) if piece in tokens else literal(piece) for piece in pieces if piece
    )
