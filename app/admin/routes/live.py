"""`/admin/live`: what this replica is doing right now, by tenant; `/admin/cache`: how it would do
with another size of KV cache.
"""

from __future__ import annotations

from pydantic import Field

from app.admin.documents import Document
from app.admin.ops import engine_stats
from app.admin.parameters import Served
from app.admin.route import operations
from app.limits.connections import Connected
from engine.api import TenantStats
from engine.client import FleetFigures, ReplicaFigures

router = operations("Live view")

_NOBODY = Connected(sockets=0, streams=0)
_IDLE = TenantStats(
    running=0,
    waiting=0,
    blocks_held=0,
    blocks_shared=0,
    blocks_cached=0,
    blocks_pinned=0,
    served=0.0,
)


class LiveEngine(Document):
    """The engine as a whole."""

    running: int = Field(description="Requests in the batch.")
    queued: int = Field(description="Requests that wait for a place in it.")
    blocks_total: int
    blocks_in_use: int
    blocks_cached: int = Field(description="Held by nobody, and findable.")
    blocks_pinned: int
    blocks_leased: int = Field(description="Kept because a tenant has asked for it.")


class LiveTenant(Document):
    """One tenant's part of it. Blocks are distinct ones."""

    id: str = Field(description="A tenant's id, or '@' and a share group's.")
    sockets: int
    streams: int = Field(description="Responses that are not over, in the engine or not.")
    running: int
    queued: int
    blocks_held: int = Field(description="Of its running requests.")
    blocks_shared: int = Field(description="Those held that several hold.")
    blocks_cached: int
    blocks_pinned: int
    blocks_leased: int = Field(description="Kept because it has asked for it.")
    lease_block_seconds: float = Field(description="Blocks times the seconds they were leased.")
    leases_broken: int = Field(description="Ended early, as no other blocks were left.")
    leases_cut: int = Field(description="Ended early, as it had more than it may have.")
    served: float = Field(description="Weighted tokens served so far, divided by its weight.")


class LiveReplica(Document):
    """One of several engines. What it says of itself is null while it does not compute."""

    id: str
    up: bool = Field(description="Whether it computes, as far as this service knows.")
    running: int | None
    queued: int | None
    queue_seconds: float | None = Field(description="To compute the prompts that it accepted.")
    kv_in_use: float | None = Field(description="The part of its blocks that requests hold.")
    hit_rate: float | None = Field(
        description="The part of prompts' tokens that its engine has found; null before any."
    )
    engine_restarts: int = Field(description="Since this service has heard of it.")
    index_lag_seconds: float = Field(description="How old what it tells of its blocks is.")
    events_lost: int = Field(description="Times that such news had to be asked for again.")


class LiveRouting(Document):
    """What this service does with several engines, since its start."""

    replicas_wanted: int
    residency: int = Field(description="Requests sent to where their prompt's beginning was.")
    load: int = Field(description="Requests sent to where there was least to wait.")
    random: int = Field(description="Requests sent while nothing was known of any replica.")
    index_blocks: int = Field(description="Blocks that it knows the place of.")
    streams_moved: int = Field(description="Taken from a replica that was lost or left.")


class Live(Document):
    """This replica, now. The engine is null while it does not answer.

    Engines behind this service are its `replicas`, if there are several.
    """

    engine: LiveEngine | None
    replicas: list[LiveReplica]
    routing: LiveRouting | None
    tenants: list[LiveTenant]


@router.get("/live")
async def show_live(service: Served) -> Live:
    """Show what this replica is doing: streams, sockets and KV blocks, by tenant."""
    stats = await engine_stats(service)
    connected = service.connections.snapshot()
    known = {} if stats is None else stats.tenants
    fleet = service.engine.fleet
    return Live(
        engine=None if stats is None else LiveEngine.of(stats, queued=stats.waiting),
        replicas=[] if fleet is None else [_replica(one) for one in fleet.replicas],
        routing=None if fleet is None else _routing(fleet),
        tenants=[
            LiveTenant.of(
                stats, id=one, queued=stats.waiting, sockets=here.sockets, streams=here.streams
            )
            for one in sorted(connected.keys() | known.keys())
            for here, stats in [(connected.get(one, _NOBODY), known.get(one, _IDLE))]
        ],
    )


class PoolSize(Document):
    """A pool as large as this, with the least recently used block evicted first."""

    blocks: int
    found: float = Field(
        description="Estimate: which part of the full blocks that prompts consist of, and that may "
        "be found, it would have found since the engine's start."
    )


class CacheSizes(Document):
    """What pools of other sizes would have found."""

    block_size: int = Field(description="Tokens in a block.")
    blocks: int = Field(description="Those of this replica's pool.")
    sizes: list[PoolSize]


@router.get("/cache")
async def show_cache(service: Served) -> CacheSizes:
    """Show what a larger or smaller KV cache would have found, of all tenants together.

    A sample of the blocks is watched for how many others are used before they are used again.
    """
    info, stats = service.engine.info, await service.engine.stats()
    return CacheSizes(
        block_size=info.block_size,
        blocks=stats.blocks_total,
        sizes=[PoolSize.of(one) for one in stats.reuse],
    )


def _routing(fleet: FleetFigures) -> LiveRouting:
    by = fleet.routed
    return LiveRouting.of(
        fleet,
        replicas_wanted=fleet.num_wanted,
        residency=by["residency"],
        load=by["load"],
        random=by["random"],
    )


def _replica(one: ReplicaFigures) -> LiveReplica:
    said = one.stats
    return LiveReplica.of(
        one,
        id=one.name,
        up=one.is_up,
        running=None if said is None else said.running,
        queued=None if said is None else said.waiting,
        queue_seconds=None if said is None else said.queue_seconds,
        kv_in_use=None if said is None else said.blocks_in_use / max(1, said.blocks_total),
        hit_rate=said.cached_tokens / said.prompt_tokens if said and said.prompt_tokens else None,
    )
