"""What requests, warmings and leases have used, booked to whoever pays for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from engine.api import EngineRequest
from tenants.records import ShareGroup
from tenants.storage.commits import ANY
from tenants.usage.journal import Slot
from tenants.usage.meter import UsageMeter
from tenants.usage.prices import NO_PRICES, PriceList, Prices


class SharedHead(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The leading tokens of a prompt that a share group's members compute once for all of them."""

    group: str
    """The group's `owner`."""
    generation: str = ANY
    tokens: int


class Bill(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Who pays for a request, and what for each token: known before it runs, and kept with it.

    Of its `prompt_tokens` the `head` is a group's; there are none where it goes on behind tokens
    that were generated before. `adapter` is what the tenant's usage calls that of the request, if
    it has one (`AdapterRecord.called_by`): the prices are those of its tokens then.
    """

    tenant_id: str
    generation: str
    prices: Prices
    reservation: str = ""
    """That of a budget, which its booking ends."""
    prompt_tokens: int = 0
    head: SharedHead | None = None
    adapter: str = ""


class Payable(NamedTuple):
    """A request, whose prompt's head may be a share group's, and what its tenant's usage calls its
    adapter: empty, without one.
    """

    request: EngineRequest
    head: SharedHead | None = None
    adapter: str = ""


_decode = msgspec.msgpack.Decoder(Bill).decode


def shared_head(
    request: EngineRequest, group: ShareGroup | None, block_size: int
) -> SharedHead | None:
    """Which part of a prompt its tenant's group shares: whole blocks of the group's prompt.

    A prompt that is computed for log-probabilities of its own is not computed for others, and
    neither is what an adapter acts on: whoever asks for that pays for it.
    """
    spaces, most = request.namespaces, request.cache.up_to
    if group is None or spaces.shared_key != group.namespace_key:
        return None
    if request.sampling.prompt_logprobs is not None:
        return None
    tokens = spaces.shared_tokens if most is None else min(spaces.shared_tokens, most)
    if request.adapter is not None:
        tokens = min(tokens, request.adapter.start)
    return SharedHead(
        group=group.owner, generation=group.generation, tokens=tokens // block_size * block_size
    )


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
    """Books in a meter, which hands it in, at the `prices` of the served model."""

    def __init__(self, meter: UsageMeter, prices: PriceList = NO_PRICES) -> None:
        self._meter = meter
        self.prices = prices

    def begin(self, bill: Bill) -> Slot:
        """Keep account of a request from now on; it ends with `request`."""
        return self._meter.begin(msgspec.msgpack.encode(bill))

    def request(
        self, bill: Bill, used: Used, slot: Slot | None = None, *, stream_seconds: float = 0.0
    ) -> int:
        """Book what a request has used, and end its slot and its reservation with it.

        It counts as one where it pays for a prompt. What it has computed of a group's head is the
        group's. One that left before the engine had told what it computed pays for its prompt
        alone. Returns what it cost its tenant.
        """
        with self._meter.booking(slot):
            cost = self._book(bill, used, stream_seconds)
            if bill.reservation:
                self._meter.release(bill.tenant_id, bill.reservation, bill.generation)
        return cost

    def left(self, slot: Slot) -> None:
        """Book what a request had used when its process died.

        One that had no token yet owes nothing.
        """
        bill = _decode(slot.bill)
        used = NOTHING
        if slot.output_tokens:
            used = Used(
                prompt_tokens=bill.prompt_tokens,
                cached_tokens=slot.cached_tokens,
                cache_write_tokens=slot.cache_write_tokens,
                output_tokens=slot.output_tokens,
            )
        self.request(bill, used, slot)

    def _book(self, bill: Bill, used: Used, stream_seconds: float) -> int:
        head, prices, computed = bill.head, bill.prices, used.prompt_tokens - used.cached_tokens
        # No adapter acts on a head: others do not pay one's price for it.
        of_head = self.prices.model if bill.adapter else prices
        written = min(computed, used.cache_write_tokens)
        is_told = used.output_tokens or used.cached_tokens or used.cache_write_tokens
        if head is not None and used.prompt_tokens and is_told:
            of_group = max(0, head.tokens - used.cached_tokens)
            written_of_group = min(of_group, written)
            self._meter.add_shared(
                head.group,
                generation=head.generation,
                computed_tokens=of_group,
                cost_nanos=of_head.prompt(of_group, 0, written_of_group),
                user=bill.tenant_id,
                user_generation=bill.generation,
                used_tokens=head.tokens,
            )
            computed, written = computed - of_group, written - written_of_group
        cost = prices.prompt(computed, used.cached_tokens, written)
        cost += used.output_tokens * prices.output
        self._meter.add(
            bill.tenant_id,
            generation=bill.generation,
            requests=int(used.prompt_tokens > 0),
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            cache_write_tokens=used.cache_write_tokens,
            computed_tokens=computed,
            output_tokens=used.output_tokens,
            stream_seconds=stream_seconds,
            cost_nanos=cost,
            adapter=bill.adapter,
        )
        return cost

    def leased(self, owner: str, before: int, until_now: int, generation: str = ANY) -> None:
        """Book what a tenant or a group has leased, in block-seconds, beyond those `before`.

        It costs what the whole does beyond what was booked of it: rounded once, however often.
        """
        prices = self.prices.model
        cost = prices.lease(until_now) - prices.lease(before)
        add = self._meter.add_shared if owner.startswith("@") else self._meter.add
        seconds = until_now - before
        add(owner, generation=generation, lease_block_seconds=seconds, cost_nanos=cost)

    def warming(self, owner: str, generation: str, used: Used) -> None:
        """Book what warming a registered prompt of a tenant's or a group's has computed."""
        computed, written = used.prompt_tokens - used.cached_tokens, used.cache_write_tokens
        cost = self.prices.model.prompt(computed, 0, written)
        if owner.startswith("@"):
            self._meter.add_shared(
                owner, generation=generation, computed_tokens=computed, cost_nanos=cost
            )
        else:
            self._meter.add(
                owner,
                generation=generation,
                computed_tokens=computed,
                cache_write_tokens=written,
                cost_nanos=cost,
            )
