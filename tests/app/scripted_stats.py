"""What an engine without a model counts: another number for each figure, to tell them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.api import EngineStats, TenantStats


def scripted_stats(
    running: Sequence[str],
    cached: Mapping[bytes, str],
    pins: Mapping[str, tuple[str, list[bytes]]],
) -> EngineStats:
    """By the tenant of each running request, who computed each block, and what each pin holds."""

    def of_tenant(tenant: str) -> TenantStats:
        return TenantStats(
            running=running.count(tenant),
            waiting=0,
            blocks_held=0,
            blocks_shared=0,
            blocks_cached=sum(owner == tenant for owner in cached.values()),
            blocks_pinned=sum(len(held) for owner, held in pins.values() if owner == tenant),
            served=0.0,
        )

    return EngineStats(
        running=len(running),
        waiting=0,
        blocks_total=1024,
        blocks_in_use=3,
        blocks_cached=len(cached),
        peak_blocks_in_use=7,
        steps=1,
        prompt_tokens=2,
        cached_tokens=3,
        output_tokens=4,
        preemptions=14,
        forks=5,
        copied_blocks=5,
        invariant_violations=0,
        host_blocks_total=64,
        host_blocks_used=8,
        recomputed=9,
        swapped_out=10,
        swapped_in=11,
        host_hit_blocks=12,
        in_block_tokens=13,
        spared_keys=14,
        drafted_tokens=15,
        accepted_tokens=16,
        blocks_pinned=sum(len(blocks) for _, blocks in pins.values()),
        blocks_leased=6,
        lease_block_seconds=17.5,
        leases_broken=18,
        leases_cut=19,
        tenants={tenant: of_tenant(tenant) for tenant in set(cached.values())},
    )
