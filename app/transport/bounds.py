"""What one socket, one message and one response may take; and a connection of anybody's."""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tenants.records import Tenant

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_IPV6_SITE_BITS = 64
"""Who has one address of IPv6 has as many as these leave."""
INLINE_BYTES = 16 * 1024
"""A message up to here is parsed at once; a longer one where it holds nobody up."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of the service; every name carries its unit.

    Of `max_incoming_bytes` (bodies and messages on their way), `max_kept_event_bytes` (of streams
    that have ended) and `max_logprob_bytes` (of answers that are being written) one tenant may take
    a quarter. `default_max_output_tokens` caps answers whose request names no maximum; `None` lets
    them use the rest of the context. Those that ask for no lifetime lease what they use of the
    cache for `lease_seconds`. A response without a reader goes on for `resume_grace_seconds`, and
    for as long after its end its events can be fetched. Server-sent streams that say nothing for
    `keep_alive_seconds` carry a comment. Adapters may be named that lie in `adapter_dir`. A
    request's pictures, fetched from `image_hosts` if not sent, have `max_image_bytes` together.
    """

    send_deadline_seconds: float = 15.0
    inbox_messages: int = 64
    max_lanes_per_socket: int = 32
    max_active_responses_per_socket: int = 16
    max_socket_seconds: float = 3600.0
    socket_history_responses: int = 64
    socket_history_bytes: int = 4 * 1024 * 1024
    max_message_bytes: int = 4 * 1024 * 1024
    max_body_bytes: int = 4 * 1024 * 1024
    max_incoming_bytes: int = 256 * 1024 * 1024
    max_image_bytes: int = 20 * 1024 * 1024
    image_hosts: tuple[str, ...] = ()
    image_seconds: float = 20.0
    response_ttl_seconds: int = 86_400
    resume_grace_seconds: float = 30.0
    max_kept_event_bytes: int = 128 * 1024 * 1024
    max_logprob_bytes: int = 128 * 1024 * 1024
    history_cache_tokens: int = 4_000_000
    max_queued_requests: int = 1024
    keep_alive_seconds: float = 15.0
    default_max_output_tokens: int | None = None
    lease_seconds: float = 0.0
    readiness_timeout_seconds: float = 2.0
    metrics_tenants: int = 20
    admin_writes_per_minute: int | None = 600
    ignores_unknown_fields: bool = False
    page_origins: tuple[str, ...] = ()
    adapter_dir: Path | None = None

    def ignores_unknown(self, tenant: Tenant) -> bool:
        """Whether unknown fields of a tenant's requests are ignored: the record's word is first."""
        if tenant.unknown_fields is None:
            return self.ignores_unknown_fields
        return tenant.unknown_fields == "ignore"


@dataclass(frozen=True, kw_only=True)
class ConnectionBounds:
    """What strangers may take; every name carries its unit.

    `max_connections_per_address` does not hold for `trusted_proxies`, which speak for many, and a
    WebSocket counts for its address only until it is accepted: from then on it is its tenant's.
    `send_deadline_seconds` is how long a peer may take nothing of what it is sent. `idle_seconds`
    is longer than clients and proxies keep a connection that they do not use (60 at most, by their
    defaults): whoever closes it first must not be the one that may be sent a request meanwhile.
    """

    max_connections: int = 4096
    max_connections_per_address: int = 256
    trusted_proxies: tuple[Network, ...] = LOOPBACK
    max_header_bytes: int = 32 * 1024
    max_headers: int = 128
    max_body_bytes: int = 4 * 1024 * 1024
    idle_seconds: float = 75.0
    header_deadline_seconds: float = 10.0
    body_deadline_seconds: float = 60.0
    send_deadline_seconds: float = 15.0


class Places:
    """The places of one listening service: so many in all, and so many an address."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self.taken = 0
        """Connections that have a place."""
        self._by_origin: Counter[str] = Counter()

    def take(self, host: str) -> Place | None:
        """A place for a connection from `host`, if there is one left."""
        if self.taken >= self._bounds.max_connections:
            return None
        origin = self._origin(host)
        if origin is not None:
            if self._by_origin[origin] >= self._bounds.max_connections_per_address:
                return None
            self._by_origin[origin] += 1
        self.taken += 1
        return Place(self, origin)

    def forget(self, origin: str) -> None:
        """One connection fewer from `origin`. To be called by its place only."""
        self._by_origin[origin] -= 1
        if not self._by_origin[origin]:
            del self._by_origin[origin]

    def _origin(self, host: str) -> str | None:
        """Whose connections are counted together; `None` for those of a trusted proxy."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is None:
                if any(address in network for network in self._bounds.trusted_proxies):
                    return None
                return str(ipaddress.ip_network((int(address), _IPV6_SITE_BITS), strict=False))
            address = address.ipv4_mapped
        if any(address in network for network in self._bounds.trusted_proxies):
            return None
        return str(address)


class Place:
    """One connection's place."""

    __slots__ = ("_origin", "_places")

    def __init__(self, places: Places, origin: str | None) -> None:
        self._places: Places | None = places
        self._origin = origin

    def vouch(self) -> None:
        """Its peer has shown a key: it does not count for its address any more."""
        if self._places is not None and self._origin is not None:
            self._places.forget(self._origin)
            self._origin = None

    def leave(self) -> None:
        """The connection has ended; again to no effect."""
        self.vouch()
        if self._places is not None:
            self._places.taken -= 1
            self._places = None
