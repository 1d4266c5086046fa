"""Names of what PEFT changes: ends of them, and parameters that modules of experts hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

MOST_NAME: Final = 200
NAME: Final = re.compile(rf"\^?[A-Za-z0-9_.]{{1,{MOST_NAME}}}")
"""Of what a pattern stands for. PEFT reads it as a regular expression; others than names may take
for ever to match."""
PARAMETERS: Final = ("gate_up_proj", "down_proj")
"""Of experts, in the order in which modules have them."""
_EXPERTS: Final = "experts"
"""What modules of experts are called."""
_WRAPPED: Final = ".base_layer"
_TEXT_MODEL: Final = re.compile(r"(?<![A-Za-z0-9_])(?:language_model|text_model)\.")
"""What models that see have their text model as."""
_Number = TypeVar("_Number", int, float)


def of_text(name: str) -> str:
    """That of a module, or an end of it, in the text model of a model that sees, which is served as
    one of its own.
    """
    return _TEXT_MODEL.sub("", name)


def matching(by_name: Mapping[str, _Number], module: str, otherwise: _Number) -> _Number:
    """As PEFT does it: of the first name that a module's name ends with. A point is a point here:
    thousands of regular expressions, each read anew, would take minutes.
    """
    ends = ends_of(module)
    return next((value for name, value in by_name.items() if name in ends), otherwise)


def ends_of(module: str) -> set[str]:
    """Names that stand for that of a module."""
    last = module[-MOST_NAME - 1 :]
    return {f"^{module}", module, *(last[at + 1 :] for at, one in enumerate(last) if one == ".")}


def parameter_names(modules: Collection[str], is_changed: Callable[[str], bool]) -> dict[str, str]:
    """Of those of `modules`, as a file has them, that wrap experts: what their parameter is called.

    PEFT wraps a module once for each of its parameters, one around the other: what is within is
    called a base layer.
    """
    holders = {_unwrapped(module) for module in modules}
    found: dict[str, str] = {}
    for holder in holders:
        if holder.rpartition(".")[2] == _EXPERTS:
            changed = [name for one in PARAMETERS if is_changed(name := f"{holder}.{one}")]
            for depth, name in enumerate(reversed(changed)):
                found[holder + depth * _WRAPPED] = name
    return {module: found[module] for module in modules if module in found}


def _unwrapped(module: str) -> str:
    while module.endswith(_WRAPPED):
        module = module.removesuffix(_WRAPPED)
    return module
