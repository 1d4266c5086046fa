"""Placeholders `{{name}}` in the text of a system prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tenants.errors import MissingVariable, UnknownVariable

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def variables(text: str) -> list[str]:
    """Names of the placeholders `{{name}}` in `text`, each once, in order of appearance."""
    return list(dict.fromkeys(_PLACEHOLDER.findall(text)))


def render(text: str, values: Mapping[str, str]) -> str:
    """`text` with a value for every placeholder; values are not looked into for placeholders.

    Raises `MissingVariable` or `UnknownVariable`, which name the variable.
    """
    expected = variables(text)
    for name in expected:
        if name not in values:
            raise MissingVariable(name)
    for name in values:
        if name not in expected:
            raise UnknownVariable(name)
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def rendered_length(text: str, values: Mapping[str, str]) -> int:
    """The characters that `render` would make: a placeholder may stand in `text` many times."""
    matches = _PLACEHOLDER.finditer(text)
    return len(text) + sum(len(values.get(match[1], "")) - len(match[0]) for match in matches)


def static_prefix(text: str) -> str:
    """What comes before the first placeholder: the same in every rendering."""
    match = _PLACEHOLDER.search(text)
    return text if match is None else text[: match.start()]
