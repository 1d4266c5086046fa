"""The engine's own admission, tables and order of eviction: what it finds when it serves a trace.

One request after the other is computed, as much of it at a time as a step takes. A running one
holds all its keys and two states beside what a cache has: there is more memory for the states and a
step.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from bench.hybrid.shapes import BLOCK, Shape
from bench.hybrid.traces.requests import Kind as Place
from bench.hybrid.traces.requests import Request, Served, Tree
from engine.api import CachePolicy, EngineRequest, Kind, Namespaces, SamplingParams
from engine.blocks.table import BlockTable
from engine.blocks.tiers import Tiers
from engine.schedule.admission import compute_admission
from engine.schedule.swap_or_recompute import FREE_COPIES, SwapOrRecompute
from engine.sequences.group import SequenceGroup

_STEP: Final = 2048
"""Tokens."""
_KEY: Final = b"everybody"


class Own:
    """A page holds the keys of a block."""

    def __init__(self, tree: Tree, shape: Shape, capacity: int) -> None:  # noqa: ARG002
        self._now = 0.0
        state = -(-shape.state_bytes // shape.block_bytes)
        num_pages = capacity // shape.block_bytes + 2 * state + _STEP // BLOCK
        kinds = Kind(), Kind(is_state=True, pages=state)
        self._tiers = Tiers(num_pages, 0, BLOCK, clock=lambda: self._now, kinds=kinds)
        self._recovery = SwapOrRecompute("recompute", FREE_COPIES)

    def serve(self, one: Served) -> int:
        """See `Policy`. What has no room is not computed to its end."""
        self._now = one.request.at
        tokens = [int(block) for block in one.request.blocks for _ in range(BLOCK)]
        request = _request(one.request, tokens)
        table = partial(
            BlockTable,
            self._tiers.pool,
            BLOCK,
            request.tenant,
            request.namespaces,
            b"",
            ends=request.cache.ends,
        )
        group = SequenceGroup.of(request, table, 0)
        admission = compute_admission(group, self._tiers, self._recovery, _STEP)
        if self._has_room(request.tenant, admission.num_new, admission.held):
            admission.take(self._tiers)
            (sequence,) = group.sequences
            self._compute(request.tenant, sequence.table, tokens, admission.num_cached)
        return admission.num_cached // BLOCK

    def _compute(self, tenant: str, table: BlockTable, tokens: list[int], start: int) -> None:
        for end in (*range(start + _STEP, len(tokens), _STEP), len(tokens)):
            if not self._has_room(tenant, table.missing(end)):
                break
            table.grow(end)
            table.seal(tokens, end)
            table.forget(end)
        self._tiers.take_fresh()  # all is computed
        table.release()

    def _has_room(self, tenant: str, num_pages: int, hits: list[int] | None = None) -> bool:
        return self._tiers.pool.can_allocate(num_pages, tenant, hits or ())


def _request(request: Request, tokens: list[int]) -> EngineRequest:
    """Where a turn ends with the sequence nothing is said: that is left anyway."""
    ends = {kind: depth * BLOCK for depth, kind in request.places}
    shared = ends.pop(Place.PROMPT, 0)
    return EngineRequest(
        request_id="one",
        tenant=str(request.tenant),
        prompt=[*tokens, 0][: request.prompt_tokens],
        namespaces=Namespaces(shared_key=_KEY, private_key=_KEY, shared_tokens=shared),
        sampling=SamplingParams(max_tokens=1),
        cache=CachePolicy(ends=tuple(end for end in ends.values() if end < len(tokens))),
    )
