"""Where the service listens and what it says of itself: addresses, TLS, log, metrics, traces."""

from __future__ import annotations

from pydantic import Field, model_validator

from app.settings.kinds import (
    LAST_PORT,
    AutoPort,
    GivenFile,
    Location,
    Section,
    Url,
    is_loopback,
    of_engine,
)
from engine.config import LogFormat, LogLevel


class AddressSettings(Section):
    """Two addresses, of the tenants and of the operators, and what may be seen at them."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(
        8000, ge=0, le=LAST_PORT, description="Port to listen on; 0 takes a free one."
    )
    admin_host: str = Field(
        "127.0.0.1", description="Address on which /admin and /metrics are served."
    )
    admin_port: AutoPort = Field(
        None, description="Their port; 0 takes a free one, auto the one behind port."
    )
    metrics_token_file: GivenFile = Field(
        None,
        description="File that holds a token for /metrics and nothing else; admin tokens that read "
        "everything open it as well.",
    )
    open_metrics: bool = Field(
        False, description="Show /metrics to whoever reaches its port, without a token."
    )
    metrics_tenants: int = Field(
        20,
        ge=0,
        description="Tenants, and registered prompts, with metrics of their own: those that have "
        "most tokens; all others together are `other`.",
    )
    ssl_certfile: GivenFile = Field(None, description="TLS certificate chain (PEM).")
    ssl_keyfile: GivenFile = Field(None, description="TLS private key (PEM).")
    insecure: bool = Field(False, description="Accept clear text on an address beyond loopback.")
    ready_file: Location | None = Field(
        None,
        description="Written (mode 0600) once requests are served: URL, pid, new secrets. Without "
        "it, and a terminal to print them on, a first start leaves its secrets in data_dir.",
    )
    core_dumps: bool = of_engine("core_dumps")
    log_format: LogFormat = of_engine("log_format")
    log_level: LogLevel = of_engine("log_level")
    otlp_endpoint: Url | None = Field(
        None,
        description="Collector that traces of requests go to (OpenTelemetry, OTLP over HTTP), such "
        "as http://127.0.0.1:4318; needs the extra partywall[otel].",
    )

    @model_validator(mode="after")
    def _addresses_fit(self) -> AddressSettings:
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile go together")
        if self.open_metrics and self.metrics_token_file is not None:
            raise ValueError("metrics_token_file goes without open_metrics")
        return self

    @property
    def uses_tls(self) -> bool:
        """Whether clients reach the service over TLS."""
        return self.ssl_certfile is not None

    @property
    def is_exposed(self) -> bool:
        """Whether keys may cross a network in clear text."""
        return not self.is_loopback and not self.uses_tls

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the tenants' port."""
        return is_loopback(self.host)

    @property
    def exposed_hosts(self) -> list[str]:
        """Where secrets may cross a network in clear text."""
        hosts = dict.fromkeys((self.host, self.admin_host))
        return [] if self.uses_tls else [host for host in hosts if not is_loopback(host)]

    @property
    def resolved_admin_port(self) -> int:
        """The port of `/admin` and `/metrics`; 0 takes a free one."""
        if self.admin_port is not None:
            return self.admin_port
        return self.port + 1 if 0 < self.port < LAST_PORT else 0
