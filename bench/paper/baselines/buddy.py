"""The buddy allocator: contiguous ranges of slots, in powers of two (Knowlton, CACM 1965).

A range of size 2^k starts at a multiple of 2^k. A larger free range is halved until it fits; a
range that is given back merges with its other half, its buddy, as long as that is free.
"""

from __future__ import annotations


class BuddyAllocator:
    """`num_slots` slots, not necessarily a power of two: they are cut into aligned powers."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError("num_slots: must be at least 1")
        self.num_slots = num_slots
        self._free: list[set[int]] = [set() for _ in range(num_slots.bit_length())]
        self._taken: dict[int, int] = {}
        start = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots & 1 << order:
                self._free[order].add(start)
                start += 1 << order

    @property
    def num_free(self) -> int:
        """Slots in free ranges."""
        return sum(len(starts) << order for order, starts in enumerate(self._free))

    def can_allocate(self, size: int) -> bool:
        """Whether a free range holds `size` slots."""
        return any(self._free[_order(size) :])

    def allocate(self, size: int) -> int:
        """Take a range of at least `size` slots; returns its first slot.

        The smallest free range that is large enough is split, the lowest one among equals.
        """
        order = _order(size)
        found = next((at for at in range(order, len(self._free)) if self._free[at]), None)
        assert found is not None, "allocate without can_allocate"
        start = min(self._free[found])
        self._free[found].remove(start)
        for at in range(found - 1, order - 1, -1):
            self._free[at].add(start + (1 << at))
        self._taken[start] = order
        return start

    def size_of(self, start: int) -> int:
        """How many slots the range that starts there has taken."""
        return 1 << self._taken[start]

    def release(self, start: int) -> None:
        """Give a range back."""
        order = self._taken.pop(start)
        while start ^ 1 << order in self._free[order]:
            self._free[order].remove(start ^ 1 << order)
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)

    def check(self) -> None:
        """Verify that the ranges tile the memory, and that no two free buddies are left apart.

        Raises `AssertionError`.
        """
        free = [(start, order) for order, starts in enumerate(self._free) for start in starts]
        position = 0
        for start, order in sorted([*free, *self._taken.items()]):
            assert start == position, f"ranges overlap or leave a gap at slot {position}"
            assert start % (1 << order) == 0, f"the range at slot {start} is not aligned"
            position += 1 << order
        assert position == self.num_slots, "the ranges do not end where the memory ends"
        for start, order in free:
            assert start ^ 1 << order not in self._free[order], f"slot {start}: buddies not merged"


def _order(size: int) -> int:
    """The exponent of the smallest power of two that is at least `size`."""
    return (size - 1).bit_length()
