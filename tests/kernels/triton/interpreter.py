"""Triton's interpreter without what it does again and again."""

from __future__ import annotations

import os
from typing import Any


def interpret() -> None:
    """Let this process, which has not imported Triton yet, interpret kernels.

    Triton prepares its language for each launch, and anew for each call of a function within: a
    third of all time. What a launch has prepared holds for all that it calls, but for Triton's own
    modules, which see the language by another name; for these once is enough, as nothing undoes it.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    prepared = set[str]()

    def call(function: Any, *arguments: Any, **named: Any) -> Any:
        module = function.fn.__module__
        if module.startswith("triton.") and module not in prepared:
            interpreter._patch_lang(function.fn)
            prepared.add(module)
        return function.rewrite()(*arguments, **named)

    interpreter.InterpretedFunction.__call__ = call
