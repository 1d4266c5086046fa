"""Policies that do not choose: a state each so many blocks, or at the end of each sequence.

Whatever has waited longest goes first, keys and states in one order, tails before heads. A hit uses
its keys and the one state where it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict

from bench.hybrid.rules.cache import Cache
from bench.hybrid.shapes import Shape
from bench.hybrid.traces.requests import Served, Tree


class EachInterval:
    """A state behind each `interval` blocks, and keys in units of as many.

    1 is a copy for each block, 8 what OpenVINO does without being told otherwise, 33 are vLLM's
    blocks of 528 tokens, which are as large as a state of the model that they were seen with.
    """

    def __init__(self, shape: Shape, capacity: int, interval: int) -> None:
        self.used = 0
        self._capacity = capacity
        self._interval = interval
        self._bytes = (shape.state_bytes, interval * shape.block_bytes)
        self._order: OrderedDict[int, None] = OrderedDict()
        """Keys by their last block, states by its complement."""

    def serve(self, one: Served) -> int:
        """See `Policy`."""
        ends = one.request.blocks[self._interval - 1 :: self._interval].tolist()
        order = self._order
        matched = bisect_left(ends, True, key=lambda end: end not in order)
        found = min(matched, one.request.most_found // self._interval)
        while found and ~ends[found - 1] not in order:
            found -= 1
        if found:
            order.move_to_end(~ends[found - 1])
        for end in reversed(ends[:matched]):
            order.move_to_end(end)
        self._write(ends, matched, found)
        return found * self._interval

    def _write(self, ends: list[int], matched: int, found: int) -> None:
        """Behind `found` all is computed, and the keys behind `matched` are new."""
        state_bytes, key_bytes = self._bytes
        states = [~end for end in ends[found:] if ~end not in self._order]
        # Of a sequence that is larger than the memory the last states stay.
        room = self._capacity - len(ends) * key_bytes
        states = states[len(states) - min(len(states), max(0, room) // state_bytes) :]
        keys = ends[matched : self._capacity // key_bytes]
        self._order.update(dict.fromkeys(states))
        self._order.update(dict.fromkeys(reversed(keys)))
        for end in reversed(ends[:matched]):
            self._order.move_to_end(end)
        self.used += len(states) * state_bytes + len(keys) * key_bytes
        while self.used > self._capacity:
            gone, _ = self._order.popitem(last=False)
            self.used -= state_bytes if gone < 0 else key_bytes


class LastOnly(Cache):
    """One state behind the last whole block of each sequence that was computed."""

    def __init__(self, tree: Tree, shape: Shape, capacity: int) -> None:
        super().__init__(tree, shape, capacity)
        self._order: OrderedDict[int, None] = OrderedDict()
        """Keys by their run, states by its complement."""

    def serve(self, one: Served) -> int:
        """See `Policy`."""
        found = self.found(one.path, one.most)
        for run in one.path:
            if not self.keys[run]:
                self.add_keys(run)
        for run in reversed(one.path):
            self._order[run] = None
            self._order.move_to_end(run)
        if found:
            self._order.move_to_end(~one.path[found - 1])
        if one.path:
            self._keep(one.path[-1])
        while self.used > self.capacity:
            self._forget()
        return self.tree.end(one.path, found)

    def _keep(self, run: int) -> None:
        if run not in self.states:
            self.add_state(run)
        self._order[~run] = None
        self._order.move_to_end(~run)

    def _forget(self) -> None:
        gone, _ = self._order.popitem(last=False)
        if gone < 0:
            self.drop_state(~gone)
            return
        if gone in self.states:
            self.drop_state(gone)
            del self._order[~gone]
        self.drop_keys(gone)
