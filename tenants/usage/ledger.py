"""What one process has counted and Redis has not taken yet, as the sum of a journal's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from tenants.usage.usage import Batch, Entry

Account: TypeAlias = tuple[str, str]
"""An owner and its generation."""


class Booked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Usage that was counted; that of a request that is over takes the place of its slot."""

    entries: list[Entry]
    request: int = 0


class Sealed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What was counted until now is handed in from now on, and not added to."""


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Redis has all that was sealed, but for the batches that it has refused."""

    refused: list[int] = []


class State(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All of a ledger, in place of the records before."""

    batches: int
    counted: list[Entry]
    sealed: list[Batch]
    last_request: int


Record: TypeAlias = Booked | Sealed | Taken | State


class _Sum:
    """The entries of one account since it was last sealed."""

    def __init__(self) -> None:
        self.increments: Counter[str] = Counter()
        self.released: list[str] = []

    def add(self, entry: Entry) -> None:
        for field, amount in entry.increments.items():
            self.increments[field] += amount
        self.released += entry.released


class Ledger:
    """The sum of the records that it was given, in their order: the same for whoever reads them."""

    def __init__(self) -> None:
        self.sealed: list[Batch] = []
        self.last_request = 0
        """The newest that was booked: its slot may not say so yet."""
        self._batches = 0
        self._counted: dict[Account, _Sum] = {}

    @property
    def is_empty(self) -> bool:
        """Whether Redis has everything."""
        return not self.sealed and not self._counted

    @property
    def state(self) -> State:
        """All of it as one record."""
        return State(self._batches, list(self._entries()), self.sealed, self.last_request)

    def apply(self, record: Record) -> None:
        """Go on by one record."""
        match record:
            case Booked():
                self._add(record.entries)
                self.last_request = record.request or self.last_request
            case Sealed():
                self._seal()
            case Taken():
                sealed, self.sealed = self.sealed, []
                self._add(one.entry for one in sealed if one.number in record.refused)
            case State():
                self._batches, self._counted = record.batches, {}
                self.sealed, self.last_request = record.sealed, record.last_request
                self._add(record.counted)

    def _add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._counted.setdefault((entry.owner, entry.generation), _Sum()).add(entry)

    def _seal(self) -> None:
        """Each account's batch has a number of its own: one owner may have two generations."""
        for entry in self._entries():
            self._batches += 1
            self.sealed.append(Batch(self._batches, entry))
        self._counted = {}

    def _entries(self) -> Iterable[Entry]:
        for (owner, generation), one in self._counted.items():
            yield Entry(owner, generation, one.increments, tuple(one.released))
