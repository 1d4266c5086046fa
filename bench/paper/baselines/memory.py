"""Where every slot of the KV memory goes, by the categories of the paper's figure 2."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Slots (tokens of KV) by what they are used for; they add up to the whole memory."""

    token_states: float = 0
    """Hold the KV of a token that its request still needs."""
    reserved: float = 0
    """Held empty for tokens that will come."""
    internal: float = 0
    """Held, but for tokens that will never come, or whose request needs nothing any more."""
    external: float = 0
    """Lost to the allocator: what it rounds up, and free memory too scattered for who waits."""
    free: float = 0
    """Whoever comes next can have it."""

    @property
    def total(self) -> float:
        """All slots."""
        return self.held + self.free

    @property
    def held(self) -> float:
        """Slots that nobody else can have."""
        return self.token_states + self.reserved + self.internal + self.external

    @property
    def utilization(self) -> float:
        """The share of what is held that holds token states."""
        return self.token_states / self.held if self.held else 0.0

    def weighted(self, weight: float) -> MemoryUse:
        """Every category times `weight`."""
        return MemoryUse(*(getattr(self, part.name) * weight for part in fields(self)))

    def __add__(self, other: MemoryUse) -> MemoryUse:
        parts = (getattr(self, part.name) + getattr(other, part.name) for part in fields(self))
        return MemoryUse(*parts)
