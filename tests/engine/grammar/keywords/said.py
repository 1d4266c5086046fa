"""What a schema's grammar lets be said: texts of JSON, and values however they are spelled."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from engine.api import Grammar
from engine.grammar.source import LIMITS, _bytes, problem_of, serialized

_MOST_SPELLINGS = 200


class Said:
    """The grammar of one schema, as the service makes it; `problem` is why it is refused."""

    def __init__(self, schema: Any, *, kind: str = "json_schema") -> None:
        source = schema if kind == "lark" else json.dumps(schema)
        grammar = Grammar(kind=kind, source=source)  # type: ignore[arg-type]
        self.problem = problem_of(grammar)
        if self.problem is None:
            arguments = {"log_level": 0, "limits": LIMITS}
            self._first = LLMatcher(_bytes(), serialized(grammar), **arguments)

    def text(self, text: str) -> bool:
        """Whether this can be the whole answer."""
        matcher, tokens = self._first.deep_copy(), list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def value(self, value: Any) -> bool:
        """Whether a value can be said in some way: 1.0 is 1, and names may come in any order."""
        return any(map(self.text, itertools.islice(_spellings(value), _MOST_SPELLINGS)))


def _spellings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        members = [
            [f"{json.dumps(k, ensure_ascii=False)}:{one}" for one in _some(v)]
            for k, v in value.items()
        ]
        for order in itertools.permutations(members):
            yield from ("{" + ",".join(one) + "}" for one in itertools.product(*order))
    elif isinstance(value, list):
        yield from ("[" + ",".join(one) + "]" for one in itertools.product(*map(_some, value)))
    else:
        if isinstance(value, float) and value.is_integer():
            yield str(int(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{value}.0"
        yield json.dumps(value, ensure_ascii=False)


def _some(value: Any) -> list[str]:
    return list(itertools.islice(_spellings(value), 24))
