"""The formats by name, in the order in which they are tried on what a template writes."""

from __future__ import annotations

from typing import Literal, get_args

from app.generate.tool_formats.deepseek import DEEPSEEK
from app.generate.tool_formats.format import Format
from app.generate.tool_formats.gemma import GEMMA
from app.generate.tool_formats.harmony import HARMONY
from app.generate.tool_formats.llama_json import LLAMA
from app.generate.tool_formats.marked_json import GRANITE, HERMES, PHI
from app.generate.tool_formats.mistral import MISTRAL
from app.generate.tool_formats.pythonic import PYTHONIC
from app.generate.tool_formats.xml_parameters import XML

FormatName = Literal[
    "hermes",
    "xml",
    "mistral",
    "granite",
    "phi",
    "deepseek",
    "gemma",
    "harmony",
    "pythonic",
    "llama",
]
ToolFormat = Literal["auto", FormatName]
FORMATS: dict[FormatName, Format] = {
    "hermes": HERMES,
    "xml": XML,
    "mistral": MISTRAL,
    "granite": GRANITE,
    "phi": PHI,
    "deepseek": DEEPSEEK,
    "gemma": GEMMA,
    "harmony": HARMONY,
    "pythonic": PYTHONIC,
    "llama": LLAMA,
}
assert FORMATS.keys() == set(get_args(FormatName))
