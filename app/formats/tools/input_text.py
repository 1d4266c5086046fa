"""What a custom tool is called with, taken out of the JSON that a model has written it in."""

from __future__ import annotations

import json
import re
from typing import Final

_HEAD: Final = re.compile(r'\s*\{\s*"\w+"\s*:\s*"')
_HALF: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
"""What may be the first half of a character."""
_WHOLE: Final = (
    r'[^"\\]+',
    r"\\[^u]",
    rf"{_HALF}\\u[0-9a-fA-F]{{4}}",
    rf"(?!{_HALF})\\u[0-9a-fA-F]{{4}}",
)
_CHARACTERS: Final = re.compile(rf"(?:{'|'.join(_WHOLE)})*")
_LONE: Final = re.compile(r"[\ud800-\udfff]")


class InputText:
    """The only member of an object, a text, as its JSON comes. What is no such object has none."""

    def __init__(self) -> None:
        self.is_whole = False
        """Whether the text has come to its end."""
        self._left = ""
        self._is_inside = False

    def push(self, text: str) -> str:
        """What more JSON has of the text."""
        self._left += text
        if self.is_whole:
            return ""
        if not self._is_inside:
            head = _HEAD.match(self._left)
            if head is None:
                return ""
            self._is_inside, self._left = True, self._left[head.end() :]
        found = _CHARACTERS.match(self._left)
        assert found is not None
        self._left = self._left[found.end() :]
        self.is_whole = self._left.startswith('"')
        return _LONE.sub("\ufffd", json.loads(f'"{found[0]}"', strict=False))
