"""The grammar of free text in which whatever begins with a trigger is a structure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.api import Grammar
from engine.grammar.lark import ANY_TEXT, json_value, literal, token


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
