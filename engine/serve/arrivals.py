"""Requests before they come to the scheduler: behind grammars, blocks on disk, adapters, pictures.

Grammars are compiled, and blocks and adapters read, in threads beside the engine's loop; pictures
are seen between its steps. Whoever waits for none of these comes in at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from engine.adapters.adapter import Arrival, Refusal
from engine.adapters.adapters import Adapters
from engine.api import EngineRequest, TokenDelta
from engine.disk.keeper import Keeper
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.grammars import Grammars
from engine.pictures.pictures import Pictures, Shown
from engine.sequences.sequence import Sequence
from engine.serve.deltas import ends_of, last_delta

_PATIENCE_SECONDS: Final = 0.002
"""For a thread, while nothing else is to be done: messages are looked for as often."""


class Arrivals:
    """Lets requests come in with `add`, whose answer are those that end by it."""

    def __init__(
        self,
        add: Callable[[EngineRequest, CompiledGrammar | None, list[bytes]], list[Sequence]],
        grammars: Grammars | None,
        keeper: Keeper | None,
        adapters: Adapters | None,
        pictures: Pictures | None,
    ) -> None:
        """Without `grammars` no request has one, and so without `adapters` and `pictures`; without
        a `keeper` nothing is on disk.
        """
        self.pictures = pictures
        self.keeper = keeper
        self.adapters = adapters
        self._add = add
        self._grammars = grammars

    def __len__(self) -> int:
        """How many requests wait."""
        return sum(len(room) for room in self._rooms)

    @property
    def _rooms(self) -> list[Grammars | Keeper | Pictures | Adapters]:
        rooms = (self._grammars, self.keeper, self.adapters, self.pictures)
        return [room for room in rooms if room is not None]

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
        for room in self._rooms:
            waiting = room.abort(request_id, index)
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
            patience = 0.0
            deltas += self._behind_blocks(request, grammar)
        if self.pictures:
            deltas += self._behind_pictures(self.pictures.advance(patience))
            patience = 0.0
        if self.adapters is not None:
            deltas += self._let_in(self.adapters.advance(patience))
        return deltas

    def take_wanted(self) -> list[bytes]:
        """The names of what requests have come to wait for since the last call, of what the service
        brings.
        """
        wanted: list[bytes] = []
        for room in (self.pictures, self.adapters):
            if room is not None and room.wanted:
                wanted += room.wanted
                room.wanted = []
        return wanted

    def bring(self, name: bytes, data: bytes, *, is_first: bool, is_last: bool) -> None:
        """Take over a piece of what was wanted."""
        for room in (self.pictures, self.adapters):
            if room is not None:
                room.bring(name, data, is_first=is_first, is_last=is_last)

    def lack(self, name: bytes, why: str) -> list[TokenDelta]:
        """The service cannot bring that."""
        deltas = [] if self.adapters is None else self._let_in(self.adapters.lack(name, why))
        if self.pictures is not None:
            deltas += self._behind_pictures(self.pictures.lack(name, why))
        return deltas

    def forget_tenant(self, tenant: str) -> None:
        """Nothing of it is found any more; its requests go on."""
        for room in self._rooms:
            room.forget_tenant(tenant)

    def _enter(
        self, request: EngineRequest, grammar: CompiledGrammar | None = None
    ) -> list[TokenDelta]:
        if self.keeper is not None and self.keeper.submit(request, grammar):
            return []
        return self._behind_blocks(request, grammar)

    def _behind_blocks(
        self, request: EngineRequest, grammar: CompiledGrammar | None
    ) -> list[TokenDelta]:
        if request.adapter is None:
            return self._behind_adapters(Arrival(request, grammar, []))
        assert self.adapters is not None, "the door has refused it"
        self.adapters.submit(request, grammar)
        return self._let_in(self.adapters.advance(0.0))

    def _let_in(self, arrivals: Iterable[Arrival | Refusal]) -> list[TokenDelta]:
        deltas: list[TokenDelta] = []
        for one in arrivals:
            if isinstance(one, Arrival):
                deltas += self._behind_adapters(one)
            else:
                for request in one.requests:
                    deltas += ends_of(request, "error", one.error)
                deltas += map(last_delta, one.ended)
        return deltas

    def _behind_adapters(self, arrival: Arrival) -> list[TokenDelta]:
        """Whoever shows pictures waits for these last: they are there only for who shows them."""
        if not arrival.request.pictures:
            return list(map(last_delta, self._add(*arrival)))
        assert self.pictures is not None, "the door has refused it"
        self.pictures.submit(arrival)
        return self._behind_pictures(self.pictures.ready())

    def _behind_pictures(self, shown: Iterable[Shown]) -> list[TokenDelta]:
        deltas: list[TokenDelta] = []
        for arrival, error in shown:
            if error is None:
                deltas += map(last_delta, self._add(*arrival))
            else:
                deltas += ends_of(arrival.request, "error", error)
        return deltas
