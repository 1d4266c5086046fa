"""What tenants were served by all replicas, so that each one's turns count the others' service.

Each replica has the door that books for it told (`app.cluster.ledger`): twice a second, hence what
a replica knows of the others is a second old at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.api import TenantStats


@dataclass(slots=True)
class _Seen:
    """A tenant at a replica; all in the unit of `TenantStats.served`."""

    served: float
    """What the replica has last said."""
    own: float
    """What it has served while it was heard of."""
    others: float
    """What the others had, when this replica was last heard."""


@dataclass(slots=True)
class Turns:
    """What replicas have served tenants since they were heard of."""

    _totals: dict[str, float] = field(default_factory=dict)
    _replicas: dict[int, dict[str, _Seen]] = field(default_factory=dict)

    def observe(self, replica: int, tenants: Mapping[str, TenantStats]) -> dict[str, float]:
        """A replica has said this; returns what the others have served its live tenants since."""
        is_new = replica not in self._replicas
        before = self._replicas.get(replica, {})
        now: dict[str, _Seen] = {}
        elsewhere: dict[str, float] = {}
        for name, stats in tenants.items():
            known = before.get(name)
            start = known.served if known is not None else stats.served if is_new else 0.0
            # A tenant that was forgotten for being idle begins again.
            grown = stats.served - start if stats.served >= start else stats.served
            own = grown if known is None else known.own + grown
            total = self._totals[name] = self._totals.get(name, 0.0) + grown
            others = total - own
            now[name] = _Seen(stats.served, own, others)
            if known is not None and others > known.others and (stats.running or stats.waiting):
                elsewhere[name] = others - known.others
        self._replicas[replica] = now
        self._drop(before.keys() - now.keys())
        return elsewhere

    def forget(self, replica: int) -> None:
        """Nothing is heard of it any more."""
        self._drop(self._replicas.pop(replica, {}))

    def _drop(self, names: Iterable[str]) -> None:
        """The totals of those that no replica knows."""
        for name in names:
            if not any(name in seen for seen in self._replicas.values()):
                self._totals.pop(name, None)
