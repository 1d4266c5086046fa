"""Requests before they come to the scheduler: behind their grammars, then behind their blocks.

Grammars are compiled, and blocks read from disk, in threads beside the engine's loop. Whoever waits
for neither comes in at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.api import EngineRequest, TokenDelta
from engine.disk.keeper import Keeper
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.grammars import Grammars
from engine.sequences.sequence import Sequence
from engine.serve.deltas import ends_of, last_delta

_PATIENCE_SECONDS: Final = 0.002
"""For a thread, while nothing else is to be done: messages are looked for as often."""


class Arrivals:
    """Lets requests come in with `add`, whose answer are those that end by it."""

    def __init__(
        self,
        add: Callable[[EngineRequest, CompiledGrammar | None], list[Sequence]],
        grammars: Grammars | None,
        keeper: Keeper | None,
    ) -> None:
        """Without `grammars` no request has one; without a `keeper` nothing is on disk."""
        self.keeper = keeper
        self._add = add
        self._grammars = grammars

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._grammars or ()) + len(self.keeper or ())

    @property
    def rest_seconds(self) -> float | None:
        """How long `advance` would have nothing to do; `None`: for ever."""
        if self:
            return 0.0
        return None if self.keeper is None else self.keeper.rest_seconds

    def submit(self, request: EngineRequest) -> list[TokenDelta]:
        """Let a request wait, or come in; returns the last deltas of sequences that end by it."""
        if request.grammar is None:
            return self._enter(request)
        assert self._grammars is not None, "the door has refused it"
        self._grammars.submit(request)
        return []

    def abort(self, request_id: str, index: int | None) -> list[TokenDelta] | None:
        """End a request that waits, or one sequence of it; `None`: it does not."""
        for room in (self._grammars, self.keeper):
            waiting = None if room is None else room.abort(request_id, index)
            if waiting is not None:
                return ends_of(waiting, "aborted", index=index)
        return None

    def advance(self, *, has_steps: bool) -> list[TokenDelta]:
        """Let come in who need not wait any more, and the keeper do what is due.

        Where the loop has no steps to go on with, it waits a moment for the threads.
        """
        patience = 0.0 if has_steps else _PATIENCE_SECONDS
        deltas: list[TokenDelta] = []
        for one in self._grammars.ready(patience) if self._grammars else ():
            patience = 0.0
            if one.error is None:
                deltas += self._enter(one.request, one.grammar)
            else:
                deltas += ends_of(one.request, "error", one.error)
        for request, grammar in () if self.keeper is None else self.keeper.advance(patience):
            deltas += self._come_in(request, grammar)
        return deltas

    def forget_tenant(self, tenant: str) -> None:
        """Nothing of it is found any more; its requests go on."""
        for room in (self._grammars, self.keeper):
            if room is not None:
                room.forget_tenant(tenant)

    def _enter(
        self, request: EngineRequest, grammar: CompiledGrammar | None = None
    ) -> list[TokenDelta]:
        if self.keeper is not None and self.keeper.submit(request, grammar):
            return []
        return self._come_in(request, grammar)

    def _come_in(self, request: EngineRequest, grammar: CompiledGrammar | None) -> list[TokenDelta]:
        return list(map(last_delta, self._add(request, grammar)))
