"""Partywall's rule of where states are written, and of how long they stay.

*Where*: at the places that a request declares (`Kind`), and where keys were found further than a
state: two prompts part there, and who notices leaves a state for the next. Keys behind the last
place of a sequence are given back at once. An end of a turn replaces the one before it unless
something else leans on that, as another answer to the same question does.

*How long*: what is worth least is given up (`engine.blocks.eviction.places`), a state with the keys
that nothing else needs. What the engine makes of that is `bench.hybrid.rules.own`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from bench.hybrid.rules.cache import Cache
from bench.hybrid.shapes import Shape
from bench.hybrid.traces.requests import Kind, Served, Tree
from engine.blocks.eviction.places import Places


class _Noticed(StrEnum):
    BRANCH = "branch"


_AnyKind = Kind | _Noticed


class Ours(Cache):
    """Both."""

    def __init__(self, tree: Tree, shape: Shape, capacity: int) -> None:
        super().__init__(tree, shape, capacity)
        self._places: Places[int] = Places()

    def serve(self, one: Served) -> int:
        """See `Policy`."""
        found = self.found(one.path, one.most)
        new = self._new(one, found)
        last = max((index for index, run in enumerate(one.path) if run in new), default=-1)
        for run in one.path[: last + 1]:
            if not self.keys[run]:
                self.add_keys(run)
            if run in new:
                self.add_state(run)
        self._keep(one, found, new)
        return self.tree.end(one.path, found)

    def _new(self, one: Served, found: int) -> Mapping[int, _AnyKind]:
        """Runs behind what was found at whose end a state is to be written, the first one first."""
        kinds = {depth: kind for depth, kind in one.request.places if depth}
        alike = self.matched(one.path, one.most)
        new: dict[int, _AnyKind] = {}
        for index, run in enumerate(one.path[found:], found + 1):
            if run in self.states:
                continue
            if (kind := kinds.get(self.tree.ends[run])) is not None:
                new[run] = kind
            elif index == alike or self._places.remembers(run):
                new[run] = _Noticed.BRANCH
        return new

    def _keep(self, one: Served, found: int, new: Mapping[int, _AnyKind]) -> None:
        now, hit = one.request.at, one.path[found - 1] if found else None
        self._note_return(one)
        if new:
            self._note_new(one, new)
        self._places.learn(now)
        if hit is not None:
            self._places.withdraw(hit)
        while self.used > self.capacity:
            run = self._places.least(now, self.gain)
            above = self.above(run)
            self._places.withdraw(run)
            self._places.forget(run, heir=above if above >= 0 else None)
            self.give_up(run)
        if hit is not None:
            self._places.offer(hit)

    def _note_return(self, one: Served) -> None:
        """The furthest place where this prompt could have gone on is the one it came back to."""
        for run in reversed(one.path[: one.most]):
            if run in self._places or self._places.remembers(run):
                self._places.returned(run, one.request.at)
                return

    def _note_new(self, one: Served, new: Mapping[int, _AnyKind]) -> None:
        now = one.request.at
        furthest = self.tree.ends[list(new)[-1]]
        passed = [run for run in one.path if run in self._places and self.tree.ends[run] < furthest]
        turns = [run for run in passed if self._places.kind(run) == Kind.TURN]
        returns = self._places.returns(turns[-1]) if turns else 0
        for run in passed:
            self._places.passed(run, now)
        for run, made_for in new.items():
            inherited = returns if made_for == Kind.TURN else 0
            self._places.add(run, made_for, one.request.tenant, now, inherited)
            self._places.offer(run)
        if turns and Kind.TURN in new.values() and self.behind[turns[-1]] == 1:
            self._places.replaced(turns[-1])
