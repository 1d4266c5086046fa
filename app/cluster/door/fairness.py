"""What tenants were served by all replicas, so that each one's turns count the others' service.

Each replica has the door that books for it told (`app.cluster.door.ledger`): twice a second, hence
what a replica knows of the others is a second old at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.api import TenantStats

_IDLE_BEATS: Final = 4
"""After which it is not looked any more what others serve a tenant."""


@dataclass(slots=True)
class _Seen:
    """A tenant at a replica; all in the unit of `TenantStats.served`."""

    served: float
    """What the replica has last said."""
    own: float
    """What it has served while it was heard of."""
    others: float
    """What the others had, when this replica was last heard."""
    is_live: bool
    """Whether it has requests there."""
    idle_beats: int = 0
    """For how long nothing of it has changed, and it had none."""


@dataclass(slots=True)
class _Heard:
    """What a replica has said."""

    tenants: dict[str, _Seen] = field(default_factory=dict)
    awake: set[str] = field(default_factory=set)
    """Those of whom it is looked what the others serve them; of the rest, when they come back."""


@dataclass(slots=True)
class Turns:
    """What replicas have served tenants since they were heard of."""

    _totals: dict[str, float] = field(default_factory=dict)
    _replicas: dict[int, _Heard] = field(default_factory=dict)

    def observe(
        self, replica: int, tenants: Mapping[str, TenantStats], gone: Collection[str] | None = None
    ) -> dict[str, float]:
        """A replica has said this of those that have changed; others are as before, but for those
        that are `gone` (`None`: for all). Returns what the others have served its live tenants.
        """
        is_new = replica not in self._replicas
        heard = self._replicas.setdefault(replica, _Heard())
        for name, stats in tenants.items():
            self._take(heard, name, stats, is_new=is_new)
        left = heard.tenants.keys() - tenants.keys() if gone is None else gone
        for name in left:
            heard.tenants.pop(name, None)
            heard.awake.discard(name)
        self._drop(left)
        return self._elsewhere(heard, tenants)

    def forget(self, replica: int) -> None:
        """Nothing is heard of it any more."""
        heard = self._replicas.pop(replica, None)
        self._drop(() if heard is None else heard.tenants)

    def _take(self, heard: _Heard, name: str, stats: TenantStats, *, is_new: bool) -> None:
        """Add what a replica has served a tenant meanwhile."""
        known = heard.tenants.get(name)
        start = known.served if known is not None else stats.served if is_new else 0.0
        # A tenant that was forgotten for being idle begins again.
        grown = stats.served - start if stats.served >= start else stats.served
        total = self._totals[name] = self._totals.get(name, 0.0) + grown
        is_live = bool(stats.running or stats.waiting)
        if known is None:
            heard.tenants[name] = _Seen(stats.served, grown, total - grown, is_live)
        else:
            known.served, known.own, known.is_live = stats.served, known.own + grown, is_live
            if name not in heard.awake:
                known.others = total - known.own  # what was before is nobody's to wait for
        heard.awake.add(name)

    def _elsewhere(self, heard: _Heard, changed: Collection[str]) -> dict[str, float]:
        """What the others have served those that are live, since this replica was last heard."""
        elsewhere: dict[str, float] = {}
        for name in list(heard.awake):
            seen = heard.tenants[name]
            others = self._totals[name] - seen.own
            if seen.is_live and others > seen.others:
                elsewhere[name] = others - seen.others
            seen.others = others
            seen.idle_beats = 0 if seen.is_live or name in changed else seen.idle_beats + 1
            if seen.idle_beats == _IDLE_BEATS:
                heard.awake.remove(name)
        return elsewhere

    def _drop(self, names: Iterable[str]) -> None:
        """The totals of those that no replica knows."""
        for name in names:
            if not any(name in heard.tenants for heard in self._replicas.values()):
                self._totals.pop(name, None)
