"""Requests whose grammars are being compiled, and the grammars that have been.

Threads compile them, tenants in turn, while the engine's loop goes on. What is compiled is kept for
those who may share the request's blocks, and is found with their key alone: how soon an answer
begins tells nothing of what a neighbour has sent. A request keeps its own grammar, wherever it
waits.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial

from engine.api import EngineRequest, Grammar
from engine.grammar.compiled import CompiledGrammar, GrammarError
from engine.grammar.vocabulary import Vocabulary
from engine.system.fair_threads import FairThreads

_THREADS = 2
_MOST_KEPT = 64
_MOST_KEPT_BYTES = 1 << 20
"""Of sources; what is compiled of them is larger, see `engine.grammar.source`."""

_Key = tuple[str, bytes, Grammar]
"""Whose it is, and what: a tenant, the namespace key of the request's own blocks, the grammar."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A request whose grammar is compiled, or cannot be for the reason of `error`."""

    request: EngineRequest
    grammar: CompiledGrammar | None = None
    error: str | None = None


class Grammars:
    """Compiles, and keeps the most recently used."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lanes: FairThreads[CompiledGrammar] = FairThreads(_THREADS, "grammar")
        self._kept: OrderedDict[_Key, Future[CompiledGrammar]] = OrderedDict()
        self._waiting: dict[str, tuple[EngineRequest, Future[CompiledGrammar]]] = {}

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def submit(self, request: EngineRequest) -> None:
        """Let a request wait for its grammar."""
        self._waiting[request.request_id] = request, self._future(request)

    def ready(self, patience_seconds: float = 0.0) -> list[Ready]:
        """The requests that need not wait any more; for one of them, it waits so long."""
        futures = {future for _, future in self._waiting.values()}
        done = wait(futures, patience_seconds, FIRST_COMPLETED).done
        found = [request for request, future in self._waiting.values() if future in done]
        return [_ready(request, self._waiting.pop(request.request_id)[1]) for request in found]

    def abort(self, request_id: str, index: int | None) -> EngineRequest | None:
        """Let a request that waits do without its sequence `index`, or be forgotten with all.

        Returns it as it was; `None` if it does not wait, or that sequence has ended.
        """
        request, future = self._waiting.get(request_id, (None, None))
        if request is None or future is None or index in request.ended:
            return None
        less = request.without(index)
        if less is None:
            del self._waiting[request_id]
            self._cancel(future)
        else:
            self._waiting[request_id] = less, future
        return request

    def forget_tenant(self, tenant: str) -> None:
        """Drop what is kept for a tenant; requests of it that wait go on."""
        for key in [key for key in self._kept if key[0] == tenant]:
            del self._kept[key]

    def _future(self, request: EngineRequest) -> Future[CompiledGrammar]:
        grammar = request.grammar
        assert grammar is not None
        key = request.tenant, request.namespaces.private_key, grammar
        future = self._kept.get(key)
        if future is None or _is_spent(future):
            work = partial(CompiledGrammar, grammar, self._vocabulary)
            future = self._lanes.submit(request.tenant, work)
            self._kept[key] = future
        self._kept.move_to_end(key)
        self._shrink()
        return future

    def _cancel(self, future: Future[CompiledGrammar]) -> None:
        """Compile nothing that has not begun and that nobody waits for."""
        if any(future is other for _, other in self._waiting.values()) or not future.cancel():
            return
        for key in [key for key, kept in self._kept.items() if kept is future]:
            del self._kept[key]

    def _shrink(self) -> None:
        while len(self._kept) > _MOST_KEPT or self._num_bytes() > _MOST_KEPT_BYTES:
            self._kept.popitem(last=False)

    def _num_bytes(self) -> int:
        return sum(len(grammar.source) for _, _, grammar in self._kept)


def _is_spent(future: Future[CompiledGrammar]) -> bool:
    """Whether it is done, and of no use."""
    return future.done() and (future.exception() is not None or future.result().is_spent)


def _ready(request: EngineRequest, future: Future[CompiledGrammar]) -> Ready:
    error = future.exception()
    if error is None:
        return Ready(request, future.result())
    if isinstance(error, GrammarError):
        return Ready(request, error=f"the grammar cannot be compiled: {error}")
    return Ready(request, error=f"{type(error).__name__} while the grammar was compiled")
