"""A map of 64-bit keys to 32-bit values in about 14 bytes an entry, for up to billions of them.

Linear hashing (Litwin, VLDB 1980): one bucket is split at a time, so that growing never stalls. A
bucket is sorted by key, in arrays that are as long as what they hold.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

import numpy as np

_MEAN_ENTRIES: Final = 512
"""Of a bucket: fewer cost memory beside their entries, more take longer to insert into."""


class CompactTable:
    """Keys are taken for random in their lower bits, as those of hashes are.

    A table that has shrunk keeps its buckets, and with them half a byte an entry.
    """

    def __init__(self) -> None:
        self._keys = [array("Q")]
        self._values = [array("I")]
        """By bucket, beside its keys."""
        self._mask = 0
        """The bits of a key that tell its bucket, or one of half as many, if that is not there."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def num_buckets(self) -> int:
        """How many there are: this grows by one at a time."""
        return len(self._keys)

    def get(self, key: int) -> int | None:
        """The value, if there is one."""
        bucket = self._bucket_of(key)
        keys = self._keys[bucket]
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            return self._values[bucket][at]
        return None

    def set_default(self, key: int, value: int) -> int | None:
        """The value that is there already; or else there is this one now."""
        bucket = self._bucket_of(key)
        keys = self._keys[bucket]
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            return self._values[bucket][at]
        keys.insert(at, key)
        self._values[bucket].insert(at, value)
        self._count += 1
        if self._count > _MEAN_ENTRIES * len(self._keys):
            self._split()
        return None

    def replace(self, key: int, value: int) -> None:
        """Another value for a key that is there. Raises `KeyError`."""
        bucket, at = self._place(key)
        self._values[bucket][at] = value

    def remove(self, key: int) -> None:
        """Take a key out that is there. Raises `KeyError`."""
        bucket, at = self._place(key)
        del self._keys[bucket][at]
        del self._values[bucket][at]
        self._count -= 1

    def values_in(self, bucket: int) -> set[int]:
        """Which values one bucket has."""
        return set(self._values[bucket])

    def items_in(self, bucket: int) -> list[tuple[int, int]]:
        """Keys and values of one bucket, as they are now."""
        return list(zip(self._keys[bucket], self._values[bucket], strict=True))

    def _bucket_of(self, key: int) -> int:
        bucket = key & self._mask
        return bucket if bucket < len(self._keys) else bucket & (self._mask >> 1)

    def _place(self, key: int) -> tuple[int, int]:
        bucket = self._bucket_of(key)
        keys = self._keys[bucket]
        at = bisect_left(keys, key)
        if at == len(keys) or keys[at] != key:
            raise KeyError(key)
        return bucket, at

    def _split(self) -> None:
        """Have one more bucket, with what belongs there of the one that stood in for it."""
        new = len(self._keys)
        if new > self._mask:
            self._mask = 2 * self._mask + 1
        old = new & (self._mask >> 1)
        keys = np.frombuffer(self._keys[old], np.uint64)
        values = np.frombuffer(self._values[old], np.uint32)
        moves = (keys & np.uint64(self._mask)) == new
        self._keys.append(array("Q", keys[moves].tobytes()))
        self._values.append(array("I", values[moves].tobytes()))
        self._keys[old] = array("Q", keys[~moves].tobytes())
        self._values[old] = array("I", values[~moves].tobytes())
