"""Times the parts of a program from outside, by replacing what it calls while a bench looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any


class PartTimes:
    """How long named parts take themselves, without the parts that they call.

    Nor does what it takes to look at a part count for whoever calls it.
    """

    def __init__(self, synchronise: Callable[[], None] = lambda: None) -> None:
        """`synchronise` waits for a device, so that its work counts for the part that asked it."""
        self._synchronise = synchronise
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = 0.0

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, whose time counts for `part`."""

        def measured(*arguments: Any, **options: Any) -> Any:
            entered = perf_counter()
            outer, self._inner = self._inner, 0.0
            self._synchronise()
            start = perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self._synchronise()
                self._seconds[part] += perf_counter() - start - self._inner
                self._inner = outer + perf_counter() - entered

        return measured

    def take(self) -> dict[str, float]:
        """Seconds of each part since the last time, which are forgotten."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """`owner.name` is `value` for the time being."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
