"""The formats of reasoning by name, in the order in which they are looked for in a template."""

from __future__ import annotations

from typing import Final, Literal, get_args

from app.formats.reasoning.harmony import Harmony
from app.formats.reasoning.marked import Marked
from app.formats.reasoning.parser import ReasoningFormat

ReasoningName = Literal[
    "harmony", "mistral", "granite", "cohere", "gemma", "seed", "kimi", "deepseek", "think"
]
ReasoningSetting = Literal["auto", "none", ReasoningName]
_THINK: Final = {"<think>": ("</think>",)}
_RESPONSE: Final = ("Here is my response:", "Here's my response:")
REASONING_FORMATS: Final[dict[ReasoningName, ReasoningFormat]] = {
    "harmony": Harmony(),
    "mistral": Marked({"[THINK]": ("[/THINK]",)}),
    "granite": Marked(
        {
            **_THINK,
            "Here is my thought process:": _RESPONSE,
            "Here's my thought process:": _RESPONSE,
        },
        framed=("<response>", "</response>"),
    ),
    "cohere": Marked(
        {"<|START_THINKING|>": ("<|END_THINKING|>",)},
        framed=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "gemma": Marked({"<|channel>": ("<channel|>",)}, label="thought\n"),
    "seed": Marked({"<seed:think>": ("</seed:think>",)}),
    "kimi": Marked({"◁think▷": ("◁/think▷",)}),
    "deepseek": Marked(_THINK, begins_inside=True),
    "think": Marked(_THINK),
}
assert REASONING_FORMATS.keys() == set(get_args(ReasoningName))
