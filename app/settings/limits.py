"""What tenants, connections, requests and responses may take, and how long."""

from __future__ import annotations

from typing import Literal

from pydantic import ByteSize, Field

from app.formats.reasoning.formats import ReasoningSetting
from app.formats.tools.formats import ToolFormat
from app.settings.kinds import (
    AutoCount,
    Count,
    DefaultCount,
    DefaultSize,
    Networks,
    Origins,
    Seconds,
    Section,
)
from tenants.records import DEFAULTED, TenantLimits


class LimitSettings(Section):
    """Of tenants without limits of their own, and of what clients send and are sent."""

    default_requests_per_minute: DefaultCount = Field(
        6000, description="Of a tenant with no limits of its own; counted in each replica."
    )
    default_concurrent_streams: DefaultCount = Field(
        256, description="Of a tenant with no limits of its own; counted in each replica."
    )
    default_sockets: DefaultCount = Field(
        256, description="Of a tenant without a limit of its own; counted in each replica."
    )
    default_queued_requests: DefaultCount = Field(
        128, description="Requests of such a tenant that wait for their first token."
    )
    default_stored_bytes: DefaultSize = Field(
        ByteSize(128 * 1024**2),
        description="Stored responses, conversations and chat completions of such a tenant; the "
        "oldest make room for new ones.",
    )
    default_adapters: DefaultCount = Field(
        16, description="Adapters that such a tenant, or a share group, may have."
    )
    default_adapter_bytes: DefaultSize = Field(
        ByteSize(256 * 1024**2),
        description="Files of all versions of the adapters of such a tenant, or of a share group.",
    )
    default_images: DefaultCount = Field(
        20, description="Pictures of one conversation of such a tenant, where the model sees."
    )
    default_files: DefaultCount = Field(
        1000, description="Uploaded files that such a tenant may have at once."
    )
    default_file_bytes: DefaultSize = Field(
        ByteSize(128 * 1024**2), description="All of its uploaded files together."
    )
    lease_seconds: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="For how long cached blocks are leased to requests that ask for no lifetime, "
        "from each use on; 0 is not at all.",
    )
    max_connections: Count = Field(
        4096, description="Connections open at once, WebSockets included."
    )
    max_connections_per_address: Count = Field(
        256,
        description="The same from one address; a WebSocket counts until its key has been checked.",
    )
    trusted_proxies: Networks = Field(
        "127.0.0.0/8,::1",
        description="Addresses and networks, with commas, that speak for many: the bound of one "
        "address is not theirs.",
    )
    allowed_origins: Origins | None = Field(
        None,
        description="Origins, with commas, whose pages browsers let call the service (CORS); * for "
        "all.",
    )
    unknown_fields: Literal["refuse", "ignore"] = Field(
        "refuse",
        description="Fields of a request that are not known: refused by name, or ignored and named "
        "in a header; a tenant's record may say otherwise.",
    )
    max_header_bytes: int = Field(
        32 * 1024, ge=1024, description="Largest head of a request: its line and headers."
    )
    header_deadline_seconds: Seconds = Field(
        10.0, description="How long a TLS handshake, and a request's head, may take."
    )
    body_deadline_seconds: Seconds = Field(
        60.0, description="How long a request's body may take, however much of it comes."
    )
    default_max_output_tokens: AutoCount = Field(
        None,
        description="Output limit of requests that name none; auto is the rest of the context.",
    )
    tool_format: ToolFormat = Field(
        "auto",
        description="How the model writes the functions that it calls; auto is what its chat "
        "template does.",
    )
    reasoning_format: ReasoningSetting = Field(
        "auto",
        description="How the model writes what it reasons before it answers; auto is what its chat "
        "template shows, if anything.",
    )
    max_queued_requests: Count = Field(
        1024, description="Requests of all tenants that wait for their first token; more get 429."
    )
    max_message_bytes: Count = Field(4 * 1024 * 1024, description="Largest request accepted.")
    response_ttl_seconds: Count = Field(
        86_400,
        description="How long stored responses, conversations, chat completions and uploaded files "
        "are kept.",
    )
    resume_grace_seconds: Seconds = Field(
        30.0, description="How long a response without a reader goes on, and can be resumed."
    )
    send_deadline_seconds: Seconds = Field(
        15.0, description="A reader that takes nothing for so long loses its stream."
    )
    ping_interval_seconds: Seconds = Field(20.0, description="Between keep-alive pings.")
    ping_timeout_seconds: Seconds = Field(
        20.0, description="Without a pong a WebSocket is dropped."
    )
    drain_seconds: Seconds = Field(
        30.0, description="How long shutdown waits for running responses; then it suspends them."
    )

    @property
    def default_limits(self) -> TenantLimits:
        """What holds for tenants that have no limits set."""
        return TenantLimits(**{name: getattr(self, f"default_{name}") for name in DEFAULTED})
