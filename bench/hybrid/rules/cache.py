"""What a prefix cache of a hybrid model holds: keys of runs, and states at the ends of some.

Keys of a run are of use only with those of all runs before it, so a run goes after the ones behind
it. A state is of use where all keys up to it are there, and a hit ends at one. While a request is
served its own runs stay. The copy that it computes with is not counted: every policy needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bench.hybrid.shapes import BLOCK, Shape
from bench.hybrid.traces.requests import Served, Tree


class Policy(Protocol):
    """A cache with its rules: one request at a time, in order of arrival."""

    def serve(self, one: Served) -> int:
        """Look up, compute and keep; returns how many blocks of the prompt were found."""
        ...


class Cache:
    """The memory that a policy fills: `used` bytes of `capacity`."""

    def __init__(self, tree: Tree, shape: Shape, capacity: int) -> None:
        self.tree = tree
        self.shape = shape
        self.capacity = capacity
        self.used = 0
        self.keys = bytearray(len(tree.ends))
        """1 for each run whose keys are there."""
        self.behind = [0] * len(tree.ends)
        """How many runs with keys go on from this one."""
        self.states: set[int] = set()
        """Runs whose end has one."""

    def matched(self, path: Sequence[int], most: int) -> int:
        """How many runs of the path have keys, up to `most`."""
        for count in range(most):
            if not self.keys[path[count]]:
                return count
        return most

    def found(self, path: Sequence[int], most: int) -> int:
        """How many runs a hit has: the state furthest on, with keys up to it."""
        for count in range(self.matched(path, most), 0, -1):
            if path[count - 1] in self.states:
                return count
        return 0

    def key_bytes(self, run: int) -> int:
        """Of a run."""
        return self.tree.lengths[run] * self.shape.block_bytes

    def add_keys(self, run: int) -> None:
        """The run before has some."""
        assert not self.keys[run]
        self.keys[run] = 1
        self.used += self.key_bytes(run)
        if (before := self.tree.parents[run]) >= 0:
            assert self.keys[before], "nothing is before these keys"
            self.behind[before] += 1

    def drop_keys(self, run: int) -> None:
        """No run behind has any, and no state is here."""
        assert self.keys[run], "there are no keys"
        assert not self.behind[run], "others need these keys"
        assert run not in self.states, "a state needs these keys"
        self.keys[run] = 0
        self.used -= self.key_bytes(run)
        if (before := self.tree.parents[run]) >= 0:
            self.behind[before] -= 1

    def add_state(self, run: int) -> None:
        """Keys up to there are there."""
        assert self.keys[run]
        assert run not in self.states
        self.states.add(run)
        self.used += self.shape.state_bytes

    def drop_state(self, run: int) -> None:
        """Keys stay."""
        self.states.remove(run)
        self.used -= self.shape.state_bytes

    def above(self, run: int) -> int:
        """The run nearest before this one whose end has a state, or -1."""
        above = self.tree.parents[run]
        while above >= 0 and above not in self.states:
            above = self.tree.parents[above]
        return above

    def gain(self, run: int) -> float:
        """Operations that a hit at this state saves over the next one before it, a byte.

        Of the bytes that go with it, which are not only its own where nothing else needs its keys.
        """
        above = self.above(run)
        depth, before = self.tree.ends[run], self.tree.ends[above] if above >= 0 else 0
        saved = self.shape.operations(depth * BLOCK) - self.shape.operations(before * BLOCK)
        return saved / (self.shape.state_bytes + sum(map(self.key_bytes, self.private(run))))

    def give_up(self, run: int) -> None:
        """Drop a state, and the keys that nothing else needs."""
        self.drop_state(run)
        for gone in self.private(run):
            self.drop_keys(gone)

    def private(self, run: int) -> list[int]:
        """Runs whose keys nothing but this run's end needs, the last one first."""
        found: list[int] = []
        while run >= 0 and self.behind[run] == (1 if found else 0):
            if found and run in self.states:
                break
            found.append(run)
            run = self.tree.parents[run]
        return found
