"""What requests, warmings and leases have used, booked to whoever pays for it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api import EngineRequest
from tenants.prices import FREE, Prices
from tenants.records import ShareGroup
from tenants.usage import UsageMeter


@dataclass(frozen=True, kw_only=True)
class SharedHead:
    """The leading tokens of a prompt that a share group's members compute once for all of them."""

    group: str
    """The group's `owner`."""
    tokens: int


def shared_head(
    request: EngineRequest, group: ShareGroup | None, block_size: int
) -> SharedHead | None:
    """Which part of a prompt its tenant's group shares: whole blocks of the group's prompt.

    A prompt that is computed for log-probabilities of its own is not computed for others.
    """
    spaces, most = request.namespaces, request.cache.up_to
    if group is None or spaces.shared_key != group.namespace_key:
        return None
    if request.sampling.prompt_logprobs is not None:
        return None
    tokens = spaces.shared_tokens if most is None else min(spaces.shared_tokens, most)
    return SharedHead(group=group.owner, tokens=tokens // block_size * block_size)


@dataclass(frozen=True, kw_only=True)
class Used:
    """What a request has used. Of its prompt, `cached_tokens` were found in the cache, and
    `cache_write_tokens` computed and left there.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0


NOTHING = Used()


class Booking:
    """Books in this process' meter, which hands it in, at the `prices` of the served model."""

    def __init__(self, meter: UsageMeter, prices: Prices = FREE) -> None:
        self._meter = meter
        self.prices = prices

    def request(
        self,
        tenant_id: str,
        used: Used,
        head: SharedHead | None,
        *,
        counts: bool,
        stream_seconds: float,
    ) -> int:
        """Book what a request has used; `counts` says whether it is one that was answered.

        What it has computed of a group's `head` is the group's. One that left before the engine had
        told what it computed pays for its prompt alone. Returns what it cost its tenant.
        """
        computed = used.prompt_tokens - used.cached_tokens
        written = min(computed, used.cache_write_tokens)
        is_told = used.output_tokens or used.cached_tokens or used.cache_write_tokens
        if head is not None and used.prompt_tokens and is_told:
            of_group = max(0, head.tokens - used.cached_tokens)
            written_of_group = min(of_group, written)
            self._meter.add_shared(
                head.group,
                computed_tokens=of_group,
                cost_nanos=self.prices.prompt(of_group, 0, written_of_group),
                user=tenant_id,
                used_tokens=head.tokens,
            )
            computed, written = computed - of_group, written - written_of_group
        cost = self.prices.prompt(computed, used.cached_tokens, written)
        cost += used.output_tokens * self.prices.output
        self._meter.add(
            tenant_id,
            requests=int(counts),
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            cache_write_tokens=used.cache_write_tokens,
            computed_tokens=computed,
            output_tokens=used.output_tokens,
            stream_seconds=stream_seconds,
            cost_nanos=cost,
        )
        return cost

    def release(self, tenant_id: str, reservation: str) -> None:
        """End a reservation of a tenant's budget, together with what was booked so far."""
        self._meter.release(tenant_id, reservation)

    def leased(self, owner: str, before: int, until_now: int) -> None:
        """Book what a tenant or a group has leased, in block-seconds, beyond those `before`.

        It costs what the whole does beyond what was booked of it: rounded once, however often.
        """
        cost = self.prices.lease(until_now) - self.prices.lease(before)
        add = self._meter.add_shared if owner.startswith("@") else self._meter.add
        add(owner, lease_block_seconds=until_now - before, cost_nanos=cost)

    def warming(self, owner: str, used: Used) -> None:
        """Book what warming a registered prompt of a tenant's or a group's has computed."""
        computed, written = used.prompt_tokens - used.cached_tokens, used.cache_write_tokens
        cost = self.prices.prompt(computed, 0, written)
        if owner.startswith("@"):
            self._meter.add_shared(owner, computed_tokens=computed, cost_nanos=cost)
        else:
            self._meter.add(
                owner, computed_tokens=computed, cache_write_tokens=written, cost_nanos=cost
            )
