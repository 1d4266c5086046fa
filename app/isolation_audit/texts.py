"""What is sent: prompts and formats of one length, each of them new to every server."""

from __future__ import annotations

import random
import string
from typing import Any

# Common enough to be a token each for most tokenizers.
_WORDS = """
    answer bird book bridge city cloud day door early end eye fair field fire first food friend
    garden good green hand head heart help hill home horse house idea island king lake land law
    letter light line man map market moon morning music name night north ocean old order paper
    people place plant point power question rain reason red river road room salt school sea
    season second ship side silver small snow song south star stone story street summer sun table
    time town tree voice wall warm water west wind window winter woman wood word work world year
""".split()  # noqa: SIM905
_FEW_WORDS = 8
_ALTERNATIVES = 100
_LETTERS = 8
_ALPHABETS = (string.digits, "abcdef", string.ascii_lowercase, string.ascii_uppercase)
"""A character of an id is replaced by one of the first of these that has it: hex stays hex."""


class Texts:
    """Draws what nobody has sent yet; the same again for the same seed."""

    def __init__(self, seed: int, words: int) -> None:
        """`words` is the length of a prompt."""
        self._draw = random.Random(seed)
        self._words = words

    def prompt(self) -> str:
        """A question, new from its first words on."""
        return self._question(self._words)

    def short_prompt(self) -> str:
        """One that takes little time to be read."""
        return self._question(_FEW_WORDS)

    def schema(self) -> dict[str, Any]:
        """A JSON schema of new names and values, large enough for its compilation to take time."""
        alternatives = [_object(self._fields()) for _ in range(_ALTERNATIVES)]
        return _object({"part": {"anyOf": alternatives}})

    def id_like(self, known: str) -> str:
        """An id that nobody has, in the form of one that somebody has: its second half is drawn."""
        half = len(known) // 2
        return known[:half] + "".join(self._drawn_like(letter) for letter in known[half:])

    def name_like(self, known: str) -> str:
        """A name that nobody has, like one that somebody has: behind its last colon it is drawn."""
        head, colon, tail = known.rpartition(":")
        return head + colon + "".join(map(self._drawn_like, tail))

    def _question(self, words: int) -> str:
        chosen = " ".join(self._draw.choices(_WORDS, k=words))
        return f"{chosen}. Tell a story with these words."

    def _fields(self) -> dict[str, Any]:
        return {
            self._name(): {"type": "string", "enum": [self._name(), self._name()]} for _ in range(2)
        }

    def _name(self) -> str:
        return "".join(self._draw.choices(string.ascii_lowercase, k=_LETTERS))

    def _drawn_like(self, letter: str) -> str:
        alphabet = next((some for some in _ALPHABETS if letter in some), letter)
        return self._draw.choice(alphabet)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """All of them required and no others, as strict servers want it."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
