"""What is known of an adapter that requests have asked for, and what becomes of these."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.adapters.blocks import Loading
from engine.adapters.figures import AdapterFigures
from engine.adapters.memory import Image
from engine.api import EngineRequest
from engine.grammar.compiled import CompiledGrammar
from engine.sequences.sequence import Sequence
from engine.system.delivery import Delivery


class Arrival(NamedTuple):
    """A request that waits no longer, and by what its adapter's blocks are found."""

    request: EngineRequest
    grammar: CompiledGrammar | None
    hashes: list[bytes]


class Refusal(NamedTuple):
    """There is no adapter for these requests, and for those in the scheduler that have ended."""

    requests: list[EngineRequest]
    ended: list[Sequence]
    error: str


@dataclass(slots=True, eq=False)
class Adapter:
    """One by its name."""

    name: bytes
    tenant: str
    """Whose request has asked for it first."""
    waiting: OrderedDict[str, tuple[EngineRequest, CompiledGrammar | None]] = field(
        default_factory=OrderedDict
    )
    delivery: Delivery = field(default_factory=Delivery)
    reading: Future[Image] | None = None
    image: Image | None = None
    loading: Loading | None = None
    blocks: list[int] = field(default_factory=list)
    """Where the model computes with it, as long as they are found by its hashes."""
    hashes: list[bytes] = field(default_factory=list)
    """Of all blocks that it takes, once it was read."""
    gathered: list[int] = field(default_factory=list)
    """Blocks that are kept for it, with a reference each, until there are enough."""
    began_at: float = 0.0
    """When its turn came, the last time."""
    is_lacking: bool = False
    """Whether the scheduler has a request that could have begun with it."""
    figures: AdapterFigures = field(default_factory=AdapterFigures)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for it."""
        return bool(self.waiting) or self.is_lacking

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is on its way either."""
        is_coming = self.delivery.is_coming or self.loading or self.reading or self.gathered
        return not (self.is_wanted or is_coming)

    def give_up(self) -> list[EngineRequest]:
        """It does not come; returns who has waited for it."""
        requests = [request for request, _ in self.waiting.values()]
        self.waiting.clear()
        self.is_lacking = False
        self.delivery.stop()
        return requests


def no_room(one: Adapter) -> str:
    """Why it is refused."""
    return f"there is no room for its {len(one.hashes)} blocks"
