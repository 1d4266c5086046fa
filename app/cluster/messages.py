"""What a front door and a replica say to each other through Ray (MessagePack)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from engine.api import EngineStats, LoadedAdapter, TenantStats
from engine.serve.messages import Deltas, Down, Ready


class Blocks(msgspec.Struct, frozen=True, tag=True):
    """What has become findable since the last such message, and what is not any more.

    If it is `cleared`, nothing else than what is `stored` can be found. It became so `at` this time
    (by the replica's clock, in seconds since 1970; 0: nobody knows), and until then what was told
    of blocks has been lost on its way `lost` times.
    """

    stored: list[bytes] = []
    removed: list[bytes] = []
    cleared: bool = False
    at: float = 0.0
    lost: int = 0


class State(msgspec.Struct, frozen=True, tag=True):
    """How it goes, and whether it is this door that books what leases have cost since it said."""

    stats: EngineStats
    """Of tenants has those that have changed since the last `State` of this attendance, and no
    adapters."""
    books: bool
    gone: list[str] | None = None
    """Tenants that it knows no more; `None`: it is the first one, and all others are."""


class Adapters(msgspec.Struct, frozen=True, tag=True):
    """Which adapters have come to be loaded since the last such message of this attendance."""

    loaded: list[LoadedAdapter]
    gone: list[bytes] | None = None
    """Those that are not any more; `None`: it is the first one, and no others are."""


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """A request of this door's waits for this adapter or picture: it is to be brought
    (`Brought`)."""

    name: bytes
    errand: int
    """What each piece is to be brought for."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Which release of Partywall the replica runs (`app.cluster.rollout`)."""

    release: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """There is nothing to say, but the replica lives."""


ToDoor = Hello | Ready | Down | Deltas | State | Blocks | Adapters | Wanted | Beat
"""`Hello` comes first, and `Ready` as soon as there is an engine; `Down` when that is lost, with
all of this door's requests, and `Ready` again. Twice a second `State`, or `Beat` while there is
none."""


class Brought(msgspec.Struct, frozen=True):
    """Of what was wanted, as `engine.client.Source` brings it. With an `error` there is none, or
    no more of it.
    """

    errand: int
    data: bytes = b""
    is_last: bool = False
    error: str | None = None


def state_since(told: Mapping[str, TenantStats] | None, stats: EngineStats, books: bool) -> State:
    """What to tell a door that has been told of tenants what is `told`, or nothing yet."""
    stats = msgspec.structs.replace(stats, adapters=[])
    if told is None:
        return State(stats, books)
    tenants = stats.tenants
    changed = {name: one for name, one in tenants.items() if told.get(name) != one}
    gone = list(told.keys() - tenants.keys())
    return State(msgspec.structs.replace(stats, tenants=changed), books, gone)


def adapters_since(
    told: Sequence[LoadedAdapter], loaded: Sequence[LoadedAdapter]
) -> Adapters | None:
    """What to tell a door that has been told that these are loaded; `None`: nothing."""
    before, names = set(told), {one.name for one in loaded}
    new = [one for one in loaded if one not in before]
    gone = [one.name for one in told if one.name not in names]
    return Adapters(new, gone) if new or gone else None


decode_brought = msgspec.msgpack.Decoder(Brought).decode
decode_to_door = msgspec.msgpack.Decoder(ToDoor).decode
