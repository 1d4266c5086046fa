"""Requests that wait for what their pictures show, and how the tower comes to see these.

The service is asked for a picture once; the tower sees one at a time, in slices of bounded time
between steps, those of tenants in turn. Whose request it was for is charged for that as for so many
tokens of a prompt. What it has seen is there for those that show it until they end, and lies among
the keys of the block pool then, for whoever shows the same picture in the same namespace
(`engine.pictures.stored`).
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from engine.adapters.adapter import Arrival
from engine.api import EngineRequest, PictureUse, TenantShare
from engine.pictures.sight import Sight
from engine.pictures.stored import StoredPictures
from engine.schedule.scheduler import Scheduler
from engine.system.delivery import Delivery
from engine.system.turns import Turns

_log = logging.getLogger(__name__)
_ALONE_SECONDS: Final = 0.05
"""A slice where nothing else is to be computed: messages are looked for as often."""
_SHARE: Final = 0.5
"""Of the time that steps take, for slices beside them."""
_LEAST_SECONDS: Final = 0.004


class Shown(NamedTuple):
    """A request that waits no longer, as it has come; with an `error` it has ended."""

    arrival: Arrival
    error: str | None = None


@dataclass(slots=True)
class _Coming:
    """A picture that somebody waits for."""

    tenant: str
    share: TenantShare
    token_ids: list[int]
    delivery: Delivery = field(default_factory=Delivery)
    pieces: list[bytes] | None = None
    """All of it, once it is here, until the tower sees it."""
    is_cached: bool = True
    """Whether the first one who wants it lets others find what is computed of it."""
    seconds: float = 0.0
    """For which the tower has seen it."""


class _Kept(NamedTuple):
    """What was seen."""

    tenant: str
    num_bytes: int
    seconds: float | None
    """That it took; `None` for what is not to be found any more."""


class Pictures:
    """Those of all tenants."""

    def __init__(
        self,
        scheduler: Scheduler,
        sight: Sight,
        stored: StoredPictures | None,
        most_bytes: int,
        most_seconds: float,
    ) -> None:
        """Requests show so many bytes at a time, about, and a slice beside steps takes so many
        seconds at most. Nothing of what nobody shows is kept where nothing can be `stored`.
        """
        self.wanted: list[bytes] = []
        """Names of those that the service is to be asked for."""
        self._lifecycle = scheduler.lifecycle
        self._sight = sight
        self._stored = stored
        self._most_bytes = most_bytes
        self._most_seconds = most_seconds
        self._waiting: OrderedDict[str, Arrival] = OrderedDict()
        self._coming: dict[bytes, _Coming] = {}
        self._here: Turns[bytes] = Turns(1, 1)
        """Those that the service has brought."""
        self._looked_at: bytes | None = None
        """What the tower sees just now."""
        self._turn_of = ""
        """Whose turn that is."""
        self._kept: dict[bytes, _Kept] = {}
        """What requests show, or have shown until now."""
        self._has_grown = False
        """Whether that was more since it was looked through."""
        self._rested_at = 0.0
        """When the last slice ended."""
        self.num_seen = 0
        """By the tower, since the start."""
        self.seconds = 0.0
        """For which it has seen."""

    def __len__(self) -> int:
        """Requests that wait, and whether the tower sees something."""
        return len(self._waiting) + (self._looked_at is not None)

    def submit(self, arrival: Arrival) -> None:
        """Let a request wait for its pictures: it waits for nothing else then, so that these are
        there as long as it is.
        """
        self._waiting[arrival.request.request_id] = arrival

    def _is_here(self, request: EngineRequest, use: PictureUse) -> bool:
        """Whether a picture was seen; if not, it will be, as soon as others may be shown."""
        if use.name in self._kept or use.name in self._coming:
            return use.name in self._kept
        if self._stored is not None and use.name in self._stored:
            if self._is_full:
                return False
            self._keep(use.name, _Kept(request.tenant, *self._stored.restore(use.name)))
            return True
        token_ids = request.prompt[use.start : use.end]
        one = self._coming[use.name] = _Coming(request.tenant, request.share, token_ids)
        up_to = request.cache.up_to
        one.is_cached = up_to is None or use.start < up_to
        one.delivery.ask()
        self.wanted.append(use.name)
        return False

    @property
    def _is_full(self) -> bool:
        """Whether more is to be shown only once others have ended."""
        if sum(one.num_bytes for one in self._kept.values()) < self._most_bytes:
            return False
        return any(group.request.pictures for group in self._lifecycle.live.values())

    def _keep(self, name: bytes, kept: _Kept) -> None:
        self._kept[name] = kept
        self._has_grown = True

    def abort(self, request_id: str, index: int | None) -> EngineRequest | None:
        """End a request that waits, or one sequence of it; returns it as it was, if it waits."""
        found = self._waiting.get(request_id)
        if found is None:
            return None
        rest = found.request.without(index)
        if rest is None:
            del self._waiting[request_id]
            self._forget_unwanted()
        else:
            self._waiting[request_id] = found._replace(request=rest)
        return found.request

    def bring(
        self, name: bytes, data: bytes, *, is_first: bool = False, is_last: bool = False
    ) -> None:
        """Take over a piece of a picture: its header first, then its arrays."""
        one = self._coming.get(name)
        if one is None:
            return
        pieces = one.delivery.take(data, is_first=is_first, is_last=is_last)
        if pieces is not None:
            one.pieces = pieces
            self._here.add(one.tenant, name)

    def lack(self, name: bytes, why: str) -> Iterator[Shown]:
        """The service cannot bring a picture: who waits for it waits no longer."""
        one = self._coming.get(name)
        if one is not None and one.delivery.is_coming:
            yield from self._refuse(name, why)

    def forget_tenant(self, tenant: str) -> None:
        """Keep nothing of a tenant's that none of its requests shows, nor store what these do."""
        for coming in self._coming.values():
            coming.is_cached &= coming.tenant != tenant
        shown = self._shown()
        for name, one in list(self._kept.items()):
            if one.tenant == tenant and name not in shown:
                self._forget(name)
            elif one.tenant == tenant:
                self._kept[name] = one._replace(seconds=None)

    def ready(self) -> Iterator[Shown]:
        """Who waits no longer."""
        for name, arrival in list(self._waiting.items()):
            request = arrival.request
            are_here = [self._is_here(request, use) for use in request.pictures]
            if all(are_here):
                del self._waiting[name]
                yield Shown(arrival)
        if self._has_grown:
            self._has_grown = False
            self._put_away()

    def advance(self, patience: float) -> Iterator[Shown]:
        """Let the tower see for a slice, which is longer where the loop has no steps to go on with:
        it has `patience` then. Returns who waits no longer.
        """
        began = time.monotonic()
        if self._looked_at is None:
            self._look()
        if self._looked_at is None:
            if patience and self._waiting:
                time.sleep(patience)
        else:
            is_done = self._sight.advance(self._slice(began, patience))
            seconds = time.monotonic() - began
            self.seconds += seconds
            self._coming[self._looked_at].seconds += seconds
            if is_done:
                yield from self._take(self._looked_at)
        self._rested_at = time.monotonic()
        for name, one in list(self._coming.items()):
            if one.delivery.is_late:
                yield from self._refuse(name, "it does not come")
        yield from self.ready()

    def _slice(self, now: float, patience: float) -> float:
        if patience:
            return _ALONE_SECONDS
        return max(_LEAST_SECONDS, min(self._most_seconds, _SHARE * (now - self._rested_at)))

    def _look(self) -> None:
        """Have the next picture seen, if one is here and may be shown."""
        while not self._is_full and (turn := self._here.take()) is not None:
            tenant, name = turn
            one = self._coming.get(name)
            if one is None or one.pieces is None:
                self._here.end(tenant)  # nobody waits for it any more, or it is to come again
                continue
            self._looked_at, self._turn_of = name, tenant
            self._sight.begin(one.pieces, one.token_ids)
            one.pieces = None
            return

    def _take(self, name: bytes) -> Iterator[Shown]:
        """The tower is done with it."""
        self._looked_at = None
        self._here.end(self._turn_of)  # who wants it now may be another
        try:
            num_bytes = self._sight.keep(name)
        except Exception as error:  # noqa: BLE001 - whatever a picture makes a tower raise
            _log.error("a picture cannot be seen", exc_info=error)
            yield from self._refuse(name, f"{type(error).__name__} in the engine")
            return
        one = self._coming.pop(name)
        self.num_seen += 1
        self._charge(one)
        seconds = one.seconds if one.is_cached else None
        self._keep(name, _Kept(one.tenant, num_bytes, seconds))

    def _charge(self, one: _Coming) -> None:
        """A tenant pays for what was seen as for a prompt, before its request comes in."""
        life = self._lifecycle
        account = life.accounts.open(one.tenant, one.share)
        if not account.waiting:
            life.fairness.begins_to_wait(account, life.accounts.waiting.values())
        account.charge(life.prices.prompt * len(one.token_ids))
        life.accounts.settle(account)

    def _refuse(self, name: bytes, why: str) -> Iterator[Shown]:
        self._coming.pop(name, None)
        for request_id, arrival in list(self._waiting.items()):
            if any(use.name == name for use in arrival.request.pictures):
                del self._waiting[request_id]
                yield Shown(arrival, f"a picture cannot be used: {why}")
        self._forget_unwanted()

    def _forget_unwanted(self) -> None:
        """Pictures that nobody waits for, and that the tower does not see, are not to come."""
        waiting = (one.request for one in self._waiting.values())
        names = {use.name for request in waiting for use in request.pictures}
        for name in self._coming.keys() - names - {self._looked_at}:
            del self._coming[name]

    def _put_away(self) -> None:
        """What nobody shows any more lies in the pool, if anywhere."""
        shown = self._shown()
        for name in self._kept.keys() - shown:
            one = self._kept[name]
            if self._stored is not None and one.seconds is not None:
                self._stored.store(name, one.tenant, one.seconds)
            self._forget(name)

    def _shown(self) -> set[bytes]:
        """The names of pictures that somebody computes with, or is going to."""
        live = (group.request for group in self._lifecycle.live.values())
        waiting = (one.request for one in self._waiting.values())
        return {use.name for request in (*live, *waiting) for use in request.pictures}

    def _forget(self, name: bytes) -> None:
        del self._kept[name]
        self._sight.forget(name)
