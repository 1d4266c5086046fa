"""Marconi (Pan et al., "Prefix caching for the era of hybrid LLMs", MLSys 2025, arXiv 2411.19379).

Built from the paper, and from its authors' program where the paper leaves something open. A radix
tree whose nodes have a state each. *Admission*: one behind the last token that was decoded, and one
where an input is about to part from a sequence in the tree, which is known before it is computed
(speculative insertion). *Eviction*: of the nodes with at most one child the one whose utility is
least, recency + alpha x efficiency, both scaled to 0...1 over these nodes. Recency is 1 over the
time since the node was hit itself, in requests; efficiency are the operations saved beside the node
before, over the bytes of its state and of all keys that it stands on. A leaf goes with its keys; a
node between two gives its keys to the one behind it. *Tuning*: alpha is 0 until the first eviction;
once five times as many requests have come as had until then, all since the start are replayed with
each alpha of a grid, and the one that saves most operations is used from there on.

One difference, in its favour: what a request has just hit is not evicted for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from bench.hybrid.rules.cache import Cache
from bench.hybrid.shapes import BLOCK, Shape
from bench.hybrid.traces.requests import Served, Tree

ALPHAS: Final = tuple(step / 10 for step in range(21))
_BOOTSTRAP: Final = 5


class Marconi(Cache):
    """With `alpha` given, that is not tuned."""

    def __init__(self, tree: Tree, shape: Shape, capacity: int, alpha: float | None = None) -> None:
        super().__init__(tree, shape, capacity)
        self.alpha = alpha or 0.0
        self.saved_operations = 0.0
        self._tuning = alpha is None
        self._seen: list[Served] = []
        self._until = 0
        """At so many requests alpha is tuned; 0 before the first eviction."""
        self._nodes = _Nodes(shape)

    def serve(self, one: Served) -> int:
        """See `Policy`."""
        if self._tuning:
            self._seen.append(one)
            if len(self._seen) == self._until:
                self._tune()
        self._nodes.now += 1
        found = self.found(one.path, one.most)
        alike = self.matched(one.path, len(one.path))
        before = one.path[found - 1] if found else -1
        if found:
            self._nodes.used(before)
            self.saved_operations += self.shape.operations(self.tree.end(one.path, found) * BLOCK)
        for run in one.path[alike:]:
            self.add_keys(run)
        # A state may lie behind what a hit may have, where a prompt ends with a block.
        nodes = [run for run in one.path if run in self.states]
        if alike and one.path[alike - 1] not in self.states:
            nodes = self._insert(one.path, alike, nodes)
        if one.path and one.path[-1] not in self.states:
            self._insert(one.path, len(one.path), nodes)
        self._evict(before)
        return self.tree.end(one.path, found)

    def _insert(self, path: Sequence[int], end: int, nodes: list[int]) -> list[int]:
        """A node at the end of so many runs; returns the path's nodes with it."""
        run = path[end - 1]
        depth = self.tree.ends[run]
        above = [node for node in nodes if self.tree.ends[node] < depth]
        below = self._nodes.first_below(above[-1] if above else -1, run, self.tree)
        self.add_state(run)
        self._nodes.add(run, depth, above[-1] if above else -1, below)
        return [*above, run, *nodes[len(above) :]]

    def _evict(self, hit: int) -> None:
        while self.used > self.capacity:
            if not self._until:
                self._until = _BOOTSTRAP * len(self._seen)
            run = self._nodes.least(self.alpha, hit)
            leaf = self._nodes.remove(run)
            if leaf:
                self.give_up(run)
            else:
                self.drop_state(run)

    def _tune(self) -> None:
        def saved(alpha: float) -> float:
            tried = Marconi(self.tree, self.shape, self.capacity, alpha)
            for one in self._seen:
                tried.serve(one)
            return tried.saved_operations

        self.alpha = max(ALPHAS, key=saved)
        self._tuning = False
        self._seen = []


class _Nodes:
    """The radix tree's nodes. Those with at most one child, which may go, are in columns."""

    def __init__(self, shape: Shape) -> None:
        self.now = 0
        self._shape = shape
        self._above: dict[int, int] = {}
        self._below: dict[int, set[int]] = {-1: set()}
        self._depth: dict[int, int] = {-1: 0}
        self._last_used: dict[int, int] = {}
        self._column: dict[int, int] = {}
        self._runs: list[int] = []
        """By column."""
        self._columns = np.zeros((2, 64))
        """When it was used last, and efficiency."""

    def used(self, run: int) -> None:
        """A hit ended there."""
        self._last_used[run] = self.now
        self._weigh(run)

    def first_below(self, above: int, run: int, tree: Tree) -> int | None:
        """The node behind `above` that a new one at `run` comes to lie before."""
        end = tree.ends[run]
        for node in self._below[above]:
            at = node
            while at >= 0 and tree.ends[at] > end:
                at = tree.parents[at]
            if at == run:
                return node
        return None

    def add(self, run: int, depth: int, above: int, below: int | None) -> None:
        """A node between two, or a leaf."""
        self._depth[run] = depth
        self._last_used[run] = self.now
        self._below[run] = set()
        self._above[run] = above
        self._below[above].add(run)
        if below is not None:
            self._below[above].remove(below)
            self._below[run].add(below)
            self._above[below] = run
            self._weigh(below)
        self._weigh(run)
        self._weigh(above)

    def remove(self, run: int) -> bool:
        """Take out a node with at most one child; returns whether it was a leaf."""
        above, below = self._above.pop(run), self._below.pop(run)
        self._below[above].remove(run)
        for node in below:
            self._above[node] = above
            self._below[above].add(node)
            self._last_used[node] = max(self._last_used[node], self._last_used[run])
            self._weigh(node)
        self._drop(run)
        del self._depth[run], self._last_used[run]
        self._weigh(above)
        return not below

    def least(self, alpha: float, but: int) -> int:
        """The node whose utility is least, and which is not `but`."""
        count = len(self._runs)
        last_used, efficiency = self._columns[:, :count]
        utility = _scaled(1 / (self.now + 1 - last_used))
        if alpha:
            utility += alpha * _scaled(efficiency)
        if but in self._column and count > 1:
            utility[self._column[but]] = np.inf
        return self._runs[int(utility.argmin())]

    def _weigh(self, run: int) -> None:
        """Something has changed about a node: what it is to be judged by."""
        if run < 0:
            return
        if len(self._below[run]) > 1:
            self._drop(run)
            return
        if run not in self._column:
            self._column[run] = len(self._runs)
            self._runs.append(run)
            if len(self._runs) > self._columns.shape[1]:
                self._columns = np.hstack([self._columns, np.zeros_like(self._columns)])
        depth, above = self._depth[run], self._depth[self._above[run]]
        saved = self._shape.operations(depth * BLOCK) - self._shape.operations(above * BLOCK)
        size = self._shape.state_bytes + depth * self._shape.block_bytes
        self._columns[:, self._column[run]] = self._last_used[run], saved / size

    def _drop(self, run: int) -> None:
        """No candidate; the last column takes its place."""
        column = self._column.pop(run, None)
        if column is None:
            return
        last = self._runs.pop()
        if last != run:
            self._runs[column] = last
            self._column[last] = column
            self._columns[:, column] = self._columns[:, len(self._runs)]


def _scaled(values: np.ndarray) -> np.ndarray:
    """From 0 to 1; all 1 where they are alike."""
    least, most = values.min(), values.max()
    return np.ones_like(values) if least == most else (values - least) / (most - least)
