"""What was used of late, in memory: the oldest goes where there is no room for it any more."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values that together weigh at most so much, of which the newest stays whatever it weighs."""

    def __init__(
        self, most: int, weigh: Callable[[Value], int] = lambda _: 1, most_values: int | None = None
    ) -> None:
        self._most = most
        self._weigh = weigh
        self._most_values = most_values
        self._values: dict[Key, Value] = {}
        self._weight = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._values))

    def get(self, key: Key) -> Value | None:
        """A value, which is no newer for that."""
        return self._values.get(key)

    def use(self, key: Key) -> Value | None:
        """A value, which is the newest from now on."""
        if key in self._values:
            self._values[key] = self._values.pop(key)
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep a value as the newest, in the place of one that is there."""
        self.drop(key)
        self._values[key] = value
        self._weight += self._weigh(value)
        while self._is_too_much():
            self.drop(next(iter(self._values)))

    def drop(self, key: Key) -> None:
        """Keep it no longer, if it is there."""
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))

    def _is_too_much(self) -> bool:
        count = len(self)
        is_heavy = self._weight > self._most and count > 1
        return is_heavy or (self._most_values is not None and count > self._most_values)
