"""What the service allows one socket, one message and one response to take."""

from __future__ import annotations

from dataclasses import dataclass

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
    `keep_alive_seconds` carry a comment.
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
