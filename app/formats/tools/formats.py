"""The formats by name, in the order in which they are tried on what a template writes."""

from __future__ import annotations

from typing import Literal, get_args

from app.formats.tools.deepseek import DEEPSEEK
from app.formats.tools.format import Format
from app.formats.tools.gemma import GEMMA
from app.formats.tools.harmony import HARMONY
from app.formats.tools.llama_json import LLAMA
from app.formats.tools.marked_json import GRANITE, HERMES, MISTRAL, PHI
from app.formats.tools.pythonic import PYTHONIC
from app.formats.tools.xml_parameters import XML

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
