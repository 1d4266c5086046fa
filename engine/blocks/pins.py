"""Pinned prompts: blocks that stay in the pool whether or not a request holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from engine.blocks.pool import BlockPool


@dataclass(frozen=True, slots=True)
class _Pin:
    tenant: str
    blocks: tuple[int, ...]


class Pins:
    """Holds one reference to each block of each pin, by the pin's name."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._pins: dict[str, _Pin] = {}
        self.references: Counter[int] = Counter()
        """How many pins hold each pinned block."""

    @property
    def num_pages(self) -> int:
        """How many pages are pinned, by however many pins each."""
        return self._pool.count(self.references)

    @property
    def tenants(self) -> set[str]:
        """The tenants that have pins."""
        return {pin.tenant for pin in self._pins.values()}

    def blocks_of(self, tenant: str, without: str | None = None) -> set[int]:
        """The blocks that a tenant's pins hold, apart from the pin named `without`."""
        return {
            block
            for name, pin in self._pins.items()
            if pin.tenant == tenant and name != without
            for block in pin.blocks
        }

    def would_hold(self, name: str, tenant: str, blocks: Collection[int]) -> int:
        """How many pages the tenant's pins would hold, were `name` to hold `blocks`."""
        return self._pool.count(self.blocks_of(tenant, without=name).union(blocks))

    def pin(self, name: str, tenant: str, blocks: Collection[int]) -> None:
        """Hold `blocks` under `name`, instead of what it has held so far."""
        self._pool.acquire(blocks)
        self.unpin(name)
        self._pins[name] = _Pin(tenant, tuple(blocks))
        self.references.update(blocks)

    def unpin(self, name: str) -> None:
        """Let go of a pin's blocks. Unknown names are fine."""
        pin = self._pins.pop(name, None)
        if pin is not None:
            self._pool.release(pin.blocks)
            self.references -= Counter(pin.blocks)

    def forget(self, tenant: str) -> None:
        """Let go of every pin of a tenant."""
        for name in [name for name, pin in self._pins.items() if pin.tenant == tenant]:
            self.unpin(name)
