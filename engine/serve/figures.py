"""The engine's books as one snapshot."""

from __future__ import annotations

from typing import Any

from engine.api import EngineStats, TenantStats
from engine.disk.keeper import Keeper
from engine.pictures.pictures import Pictures
from engine.run.steps import Runner, Steps
from engine.schedule.scheduler import Scheduler


def engine_stats(
    scheduler: Scheduler,
    order: Steps,
    runner: Runner,
    keeper: Keeper | None,
    pictures: Pictures | None,
    **counts: Any,
) -> EngineStats:
    """What these have counted, and `counts`, which the loop has."""
    tiers, lifecycle, speculation = scheduler.tiers, scheduler.lifecycle, scheduler.speculation
    pool, transfers = tiers.pool, tiers.transfers
    leases, tenants = pool.leases.totals(), _tenant_stats(scheduler)
    counts["spared_keys"] = getattr(runner, "num_spared_keys", 0)  # of who groups sequences
    experts = getattr(runner, "experts", None)  # of who counts them
    if experts is not None:
        counts |= experts.figures()
    if speculation is not None:
        counts["drafted_tokens"] = speculation.num_drafted
        counts["accepted_tokens"] = speculation.num_accepted
    if keeper is not None:
        counts["kept_files"] = len(keeper.shelf)
        counts["kept_bytes"] = keeper.shelf.num_bytes
        counts["restored_blocks"] = pool.in_blocks(keeper.restorer.num_restored_pages)
    if pictures is not None:
        counts["pictures_seen"] = pictures.num_seen
        counts["picture_seconds"] = pictures.seconds
    return EngineStats(
        running=len(scheduler.running),
        waiting=lifecycle.num_waiting,
        queue_seconds=scheduler.queue_seconds,
        prefill_tokens_per_s=scheduler.pace.tokens_per_second or 0.0,
        blocks_total=pool.num_blocks,
        blocks_in_use=pool.in_blocks(pool.num_in_use),
        blocks_cached=pool.in_blocks(pool.num_cached),
        peak_blocks_in_use=pool.in_blocks(pool.peak_in_use),
        prompt_tokens=lifecycle.num_prompt_tokens,
        cached_tokens=lifecycle.num_cached_tokens,
        preemptions=lifecycle.num_preemptions,
        forks=lifecycle.num_forks,
        copied_blocks=lifecycle.num_copied_blocks,
        blocks_pinned=pool.in_blocks(scheduler.pins.num_pages),
        blocks_leased=pool.in_blocks(pool.count(pool.leases.blocks)),
        lease_block_seconds=leases.page_seconds / pool.block_pages,
        leases_broken=leases.num_broken,
        leases_cut=leases.num_cut,
        host_blocks_total=tiers.host.num_blocks,
        host_blocks_used=pool.in_blocks(tiers.host.num_in_use + tiers.host.num_cached),
        recomputed=lifecycle.num_recomputed,
        swapped_out=pool.in_blocks(transfers.num_swapped_out),
        swapped_in=pool.in_blocks(transfers.num_swapped_in),
        host_hit_blocks=pool.in_blocks(lifecycle.num_host_hit_pages),
        in_block_tokens=lifecycle.num_in_block_tokens,
        tenants=tenants,
        reuse=list(lifecycle.reuse.points()),
        evicted=tiers.evictions.told(pool.in_blocks),
        evicted_blocks=pool.in_blocks(tiers.evictions.num_pages),
        plan_seconds=order.plan_seconds,
        compute_seconds=order.compute_seconds,
        **counts,
    )


def _tenant_stats(scheduler: Scheduler) -> dict[str, TenantStats]:
    pins, pool, leases = scheduler.pins, scheduler.pool, scheduler.pool.leases
    pinned = {tenant: pool.count(pins.blocks_of(tenant)) for tenant in pins.tenants}
    stats = {}
    known = {account.tenant for account in scheduler.accounts.known()}
    for tenant in known.union(pinned, leases.tenants):
        account, leased = scheduler.accounts.get(tenant), leases.of(tenant)
        stats[tenant] = TenantStats(
            running=len(account.running),
            waiting=len(account.waiting),
            blocks_held=pool.in_blocks(pool.count(account.held)),
            blocks_shared=pool.in_blocks(
                pool.count([one for one in account.held if pool.references[one] > 1])
            ),
            blocks_cached=pool.in_blocks(pool.num_cached_of(tenant)),
            blocks_pinned=pool.in_blocks(pinned.get(tenant, 0)),
            served=account.served,
            blocks_leased=pool.in_blocks(leased.num_pages),
            lease_block_seconds=leased.page_seconds / pool.block_pages,
            leases_broken=leased.num_broken,
            leases_cut=leased.num_cut,
            leases_since=leased.begun,
        )
    return stats
