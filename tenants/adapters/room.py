"""How much an owner's adapters may take: names, versions, and bytes of their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tenants.adapters.heads import Head
from tenants.errors import AdaptersExceeded

MAX_ADAPTERS: Final = 1000
"""Names that an owner has used, deleted ones included: their numbers are never used twice."""
MAX_VERSIONS: Final = 100


class MostAdapters(NamedTuple):
    """How much an owner may have; `None` is no limit."""

    names: int | None = None
    num_bytes: int | None = None


async def no_limit(owner: str) -> MostAdapters:  # noqa: ARG001
    """Of whoever's adapters nobody counts."""
    return MostAdapters()


def bytes_left(owner: str, name: str, most: MostAdapters, heads: Mapping[str, Head]) -> int | None:
    """How many bytes another version may have, `None` for any. Raises `AdaptersExceeded`."""
    live = {one: head for one, head in heads.items() if head.active is not None}
    if name not in live and most.names is not None and len(live) >= most.names:
        raise AdaptersExceeded(f"{owner} may have {most.names} adapters: delete one first")
    if name not in heads and len(heads) >= MAX_ADAPTERS:
        raise AdaptersExceeded(f"{owner} has had {MAX_ADAPTERS} adapters: no other name is free")
    if name in live and len(live[name].versions) >= MAX_VERSIONS:
        raise AdaptersExceeded(f"adapter {name!r} has {MAX_VERSIONS} versions: delete it first")
    if most.num_bytes is None:
        return None
    taken = sum(one.num_bytes for head in live.values() for one in head.versions.values())
    return max(0, most.num_bytes - taken)
