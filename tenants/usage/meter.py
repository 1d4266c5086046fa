"""Counts what is used in one process, and hands it in to Redis, exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime

from tenants.errors import InvalidField, StoreUnavailable, UsageRefused
from tenants.storage.commits import ANY
from tenants.storage.connection import GuardedRedis
from tenants.usage import usage
from tenants.usage.journal import Journal, Slot
from tenants.usage.ledger import Booked, Ledger, Record, Sealed, Taken
from tenants.usage.totals import TotalUsage, read_totals
from tenants.usage.usage import (
    ADAPTER,
    GROUP,
    USED_BY,
    AdapterUsage,
    DayUsage,
    Entry,
    adding,
)

_log = logging.getLogger(__name__)
FLUSH_SECONDS = 1.0
_COMPLAINT_SECONDS = 60.0


class UsageMeter:
    """Counts what tenants use in this process and keeps it until Redis has it, exactly once.

    What its `journal` has outlives the process, see `left`. Owners are named with the
    generation that is meant, see `tenants.storage.commits`.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        journal: Journal | None = None,
        *,
        flush_seconds: float = FLUSH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._journal = Journal() if journal is None else journal
        self._ledger = Ledger()
        self._pending: list[Entry] = []
        self._collects = False
        self._is_behind = False
        self._complained_at = -_COMPLAINT_SECONDS
        self._flushing = asyncio.Lock()

    def left(self) -> Iterator[UsageMeter]:
        """The meters of processes that are gone, from their journals; each is to be closed."""
        for journal in self._journal.left():
            yield UsageMeter(self._redis, journal, clock=self._clock)

    def read_journal(self) -> list[Slot]:
        """Have what its journal says, of a meter that was left, as what it counts.

        The requests that it had running are to be booked, each within `booking`. Raises `OSError`,
        and `msgspec.DecodeError` for a journal that this version cannot read.
        """
        self._ledger, slots = self._journal.read()
        return slots

    def begin(self, bill: bytes) -> Slot:
        """Keep account of a request from now on: of what it has had, and who pays for it."""
        return self._journal.begin(bill)

    @contextmanager
    def booking(self, slot: Slot | None = None) -> Iterator[None]:
        """Have what is counted within this be counted as one, in place of a request's slot."""
        self._collects = True
        try:
            yield
        finally:
            self._collects = False
            entries, self._pending = self._pending, []
            if entries:
                self._note(Booked(entries, 0 if slot is None else slot.number))
        if slot is not None:
            self._journal.end(slot)

    def add(
        self,
        tenant_id: str,
        *,
        generation: str = ANY,
        requests: int = 0,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
        computed_tokens: int = 0,
        output_tokens: int = 0,
        lease_block_seconds: int = 0,
        stream_seconds: float = 0.0,
        cost_nanos: int = 0,
        adapter: str = "",
    ) -> None:
        """Count what a tenant has used just now, perhaps with an adapter; see `DayUsage` and
        `AdapterUsage`.
        """
        used = {
            "requests": requests,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "cache_write_tokens": cache_write_tokens,
            "computed_tokens": computed_tokens,
            "output_tokens": output_tokens,
            "lease_block_seconds": lease_block_seconds,
            "stream_milliseconds": round(stream_seconds * 1000),
            "cost_nanos": cost_nanos,
        }
        if adapter:
            used |= {f"{ADAPTER}{adapter}:{name}": amount for name, amount in used.items()}
        self._count(tenant_id, generation, used)

    def release(self, tenant_id: str, reservation: str, generation: str = ANY) -> None:
        """Have a reservation of a tenant's budget end when what was counted until now is booked."""
        self._keep(Entry(tenant_id, generation, {}, (reservation,)))

    def add_shared(
        self,
        group: str,
        *,
        generation: str = ANY,
        computed_tokens: int = 0,
        lease_block_seconds: int = 0,
        cost_nanos: int = 0,
        user: str = "",
        user_generation: str = ANY,
        used_tokens: int = 0,
    ) -> None:
        """Count what was computed, and leased, of the prompts of a share group, named by `owner`.

        And that a request of the tenant `user` had `used_tokens` of them, computed or found.
        """
        of_group = {
            "computed_tokens": computed_tokens,
            "lease_block_seconds": lease_block_seconds,
            "cost_nanos": cost_nanos,
            f"{USED_BY}{user}": used_tokens,
        }
        self._count(group, generation, of_group)
        self._count(user, user_generation, {f"{GROUP}{group}": used_tokens})

    def _count(self, owner: str, generation: str, used: Mapping[str, int]) -> None:
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        increments = {f"{day}:{quantity}": amount for quantity, amount in used.items() if amount}
        if increments:
            self._keep(Entry(owner, generation, increments))

    def _keep(self, entry: Entry) -> None:
        if self._collects:
            self._pending.append(entry)
        else:
            self._note(Booked([entry]))

    def _note(self, record: Record) -> None:
        self._ledger.apply(record)
        self._journal.append(record, self._ledger)

    async def run(self) -> None:
        """Hand in what was used, every second until cancelled, and then what is left.

        Raises `UsageRefused` now and then while there is something that cannot be handed in.
        """
        try:
            while True:
                await asyncio.sleep(self._flush_seconds)
                refused = await self.flush()
                if refused and time.monotonic() - self._complained_at > _COMPLAINT_SECONDS:
                    self._complained_at = time.monotonic()
                    raise UsageRefused(refused)
        finally:
            await self.flush()

    async def flush(self) -> list[str]:
        """Hand in what was used until now; what Redis does not take is kept for the next time.

        Returns whose usage it has refused, as something else lies where that is to be.
        """
        try:
            async with self._flushing:
                await self._hand_in()  # what it may have taken of before
                if not self._ledger.is_empty:
                    self._note(Sealed())
                refused = await self._hand_in()
        except StoreUnavailable as error:
            if not self._is_behind:
                _log.warning("usage is kept here until the store takes it: %s", error)
            self._is_behind = True
            return []
        if self._is_behind:
            _log.info("the store has all usage again")
        self._is_behind = False
        return refused

    async def read(self, tenant_id: str, since: date, until: date) -> list[DayUsage]:
        """The days from `since` to `until`, both included, on which a tenant used anything.

        Raises `InvalidField` ("until"), `StoreUnavailable`.
        """
        _check_days(since, until)
        days = await usage.read_all(self._redis, tenant_id)
        return [day for day in days if since <= day.day <= until]

    async def read_by_adapter(self, tenant_id: str, since: date, until: date) -> list[AdapterUsage]:
        """What of those days a tenant's requests with adapters had. Raises what `read` does."""
        _check_days(since, until)
        parts = await usage.read_by_adapter(self._redis, tenant_id)
        return [part for part in parts if since <= part.day <= until]

    async def read_totals(
        self, tenants: Sequence[str], groups: Sequence[str], since: date, until: date
    ) -> list[TotalUsage]:
        """See `tenants.usage.totals`."""
        return await read_totals(self._redis, tenants, groups, since, until)

    async def generations(self, owners: list[str]) -> dict[str, str]:
        """Those of owners that are there and have one. Raises `StoreUnavailable`."""
        return await usage.generations(self._redis, owners)

    @property
    def has_all_in(self) -> bool:
        """Whether Redis has everything that was counted."""
        return self._ledger.is_empty

    def close(self) -> None:
        """End its journal; what is not booked, or not taken by Redis, is left in it for a later
        process.
        """
        if self._ledger.is_empty and self._journal.is_settled:
            self._journal.remove()
        else:
            self._journal.close()

    async def _hand_in(self) -> list[str]:
        """Hand in what is sealed; whose was refused."""
        batches, meter = self._ledger.sealed, self._journal.meter_id
        if not batches:
            return []
        places = await usage.hand_in(self._redis, [adding(meter, one) for one in batches])
        refused = [batches[place] for place in places]
        self._note(Taken([one.number for one in refused]))
        return [one.entry.owner for one in refused]


def _check_days(since: date, until: date) -> None:
    if until < since:
        raise InvalidField("until", f"not before since, {since}")
