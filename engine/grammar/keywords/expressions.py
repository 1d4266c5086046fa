"""Patterns as JSON schemas have them, ECMAScript's, in the syntax of Rust's expressions."""

from __future__ import annotations

import re
from typing import Final

_BLANKS: Final = (
    r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
)
_ESCAPE: Final = re.compile(r"\\(?:c([A-Za-z])|(.))", re.DOTALL)


def in_rust(pattern: str) -> str:
    r"""A pattern in which `\s` and `\c` mean what they do in ECMAScript."""
    return _ESCAPE.sub(_escaped, pattern)


def _escaped(found: re.Match[str]) -> str:
    if found[1]:
        return f"\\x{{{ord(found[1]) % 32:x}}}"
    if found[2] == "s":
        return f"[{_BLANKS}]"
    if found[2] == "S":
        return f"[^{_BLANKS}]"
    return found[0]
