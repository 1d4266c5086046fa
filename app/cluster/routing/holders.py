"""Sets of replicas by small numbers: most blocks are held by one replica, or by those of others."""

from __future__ import annotations

Holders = frozenset[int]


class HolderSets:
    """Each set once, under a number that stays its own while anything has it."""

    def __init__(self) -> None:
        self._sets: list[Holders] = []
        self._uses: list[int] = []
        self._numbers: dict[Holders, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Holders:
        return self._sets[number]

    def take(self, holders: Holders) -> int:
        """The number of a set that one thing more has."""
        number = self._numbers.get(holders)
        if number is None:
            number = self._add(holders)
        self._uses[number] += 1
        return number

    def take_again(self, number: int, times: int) -> None:
        """So many things more have a set."""
        self._uses[number] += times

    def drop(self, number: int) -> None:
        """One thing less has it; the number of one that nothing has is given to another."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._numbers[self._sets[number]]
            self._sets[number] = frozenset()
            self._free.append(number)

    def _add(self, holders: Holders) -> int:
        if self._free:
            number = self._free.pop()
            self._sets[number] = holders
        else:
            number = len(self._sets)
            self._sets.append(holders)
            self._uses.append(0)
        self._numbers[holders] = number
        return number
