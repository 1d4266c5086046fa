"""The systems that are compared, all with the same memory and the same limit on what runs."""

from __future__ import annotations

from bench.paper.baselines.orca import Orca, reserve_max, reserve_oracle, reserve_pow2
from bench.paper.baselines.server import Server
from bench.paper.baselines.static import PaddedBatches, StaticBatches
from bench.paper.lengths import CONTEXT_TOKENS
from bench.paper.paged import Paged

MAX_RUNNING = 256

PARTYWALL = "Partywall"
WITHOUT_CACHE = "Partywall, cache off"
ORACLE = "Orca (Oracle)"
POW2 = "Orca (Pow2)"
MAX = "Orca (Max)"
FASTER_TRANSFORMER = "FasterTransformer"
GENERATE = "generate()"

ORCAS = (ORACLE, POW2, MAX)
SYSTEMS = (PARTYWALL, *ORCAS, FASTER_TRANSFORMER, GENERATE)


def make_server(
    system: str, num_slots: int, *, block_size: int = 16, measure: bool = False
) -> Server:
    """A server with empty memory; `measure` has Partywall account for its memory as all others."""
    if system == PARTYWALL:
        return Paged(num_slots, MAX_RUNNING, block_size, measure=measure)
    if system == WITHOUT_CACHE:
        return Paged(num_slots, MAX_RUNNING, block_size, prefix_cache=False, measure=measure)
    if system == FASTER_TRANSFORMER:
        return StaticBatches(num_slots, CONTEXT_TOKENS, MAX_RUNNING)
    if system == GENERATE:
        return PaddedBatches(num_slots, CONTEXT_TOKENS, MAX_RUNNING)
    reservations = {
        ORACLE: reserve_oracle,
        POW2: reserve_pow2(CONTEXT_TOKENS),
        MAX: reserve_max(CONTEXT_TOKENS),
    }
    return Orca(num_slots, reservations[system], MAX_RUNNING)
