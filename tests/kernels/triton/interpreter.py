"""Triton's interpreter without what it does again and again, and with products of rows alone."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


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
    interpreter.InterpreterBuilder.create_dot = _exact_dot


def _exact_dot(_: Any, a: Any, b: Any, d: Any, *__: Any) -> Any:
    """Summed in float64: in float32 a row's bits depend on its place, in some libraries."""
    product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
    return type(d)(product.astype(d.data.dtype) + d.data, d.dtype.scalar)
