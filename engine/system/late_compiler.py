"""torch's compiler, imported once something compiles.

Nothing here does, and it takes half a second and 100 MiB. `transformers` imports it only to mark
what shall not be compiled: until more than such a mark is asked of it, it is an empty module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

_MARKS = {"disable", "assume_constant_result", "allow_in_graph"}
"""Decorators that change nothing where nothing is compiled."""


def import_late(name: str) -> None:
    """Let a module that nobody has imported yet be empty until it is needed."""
    sys.meta_path.insert(0, _Finder(name))


class _Finder(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: Sequence[str] | None, *_: object) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec


class _LateLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = RLock()

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Late(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not yet."""

    def load(self, module: ModuleType) -> None:
        with self._lock:
            if isinstance(module, _Late):
                module.__class__ = ModuleType  # type: ignore[assignment]
                self._loader.exec_module(module)


class _Late(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """What it has not been given, as its submodules are."""
        if name in _MARKS:
            return _mark
        if name.startswith("__"):
            raise AttributeError(name)
        loader = self.__spec__ and self.__spec__.loader
        assert isinstance(loader, _LateLoader)
        loader.load(self)
        return getattr(self, name)


def _mark(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    return _mark if function is None else function
