"""An upper bound that knows the future.

It knows of each prompt where it would go on if nothing were ever forgotten, so it writes a state
nowhere else, and at each moment gives up the place whose next return saves least for the bytes and
the seconds that it has to be kept until then (Belady's rule, IBM Systems Journal 1966, with
sizes and gains). A place that nobody will come back to is not kept at all. The rule is greedy:
no schedule of its kind is known to be best where sizes and gains differ, so it bounds what rules
of this form can do, and another schedule may find some tokens more.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from bench.hybrid.rules.cache import Cache
from bench.hybrid.shapes import Shape
from bench.hybrid.traces.requests import Served, Tree

_SOON: Final = 1e-3
"""Seconds: requests may come at the same moment."""


class Future(Cache):
    """See above."""

    def __init__(self, tree: Tree, shape: Shape, capacity: int) -> None:
        super().__init__(tree, shape, capacity)
        self._returns: dict[int, list[float]] = defaultdict(list)
        """For each place when somebody will come back, the next one last."""
        for one in reversed(tree.served):
            if one.best:
                self._returns[one.path[one.best - 1]].append(one.request.at)

    def serve(self, one: Served) -> int:
        """See `Policy`."""
        if one.best:
            self._returns[one.path[one.best - 1]].pop()
        found = self.found(one.path, one.most)
        wanted = [index for index, run in enumerate(one.path) if self._returns.get(run)]
        for index in range(found):
            if one.path[index] in self.states and index not in wanted:
                self.give_up(one.path[index])
        for run in one.path[: wanted[-1] + 1] if wanted else ():
            if not self.keys[run]:
                self.add_keys(run)
        for index in wanted:
            if index >= found and one.path[index] not in self.states:
                self.add_state(one.path[index])
        while self.used > self.capacity:
            self.give_up(min(self.states, key=lambda run: self._value(run, one.request.at)))
        return self.tree.end(one.path, found)

    def _value(self, run: int, now: float) -> float:
        """Operations that a byte saves in a second until the next return."""
        return self.gain(run) / max(_SOON, self._returns[run][-1] - now)
