"""What is told of an adapter that requests have named."""

from __future__ import annotations

import msgspec


class AdapterState(msgspec.Struct, frozen=True, kw_only=True):
    """Where an adapter is in an engine, and what it was like to have it there, since its start.

    `on_device`: all of it is found in blocks, and the next request with it need not wait.
    `in_host`: it comes back from the host's memory. It takes `num_bytes` in either (0: it was never
    read). So many requests have begun with it, `uses`, the last one `idle_seconds` ago. The last
    time that it came from the store took `fetch_seconds`, until it was read; from the host into
    blocks it took `load_seconds`. `None`: not yet.
    """

    on_device: bool
    in_host: bool
    num_bytes: int
    uses: int
    idle_seconds: float | None
    fetch_seconds: float | None
    load_seconds: float | None
