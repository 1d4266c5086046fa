"""Every setting of the service: one typed tree.

A field is the same on the command line (`--step-token-budget`), in the environment
(`PARTYWALL_STEP_TOKEN_BUDGET`) and in `docs/settings.md`; the command line wins. Units are in the
names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import ByteSize, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.formats.reasoning.formats import ReasoningSetting
from app.formats.tools.formats import ToolFormat
from app.setting_kinds import (
    LAST_PORT,
    AutoCount,
    AutoPort,
    AutoSize,
    Count,
    DefaultCount,
    DefaultSize,
    Location,
    Networks,
    Origins,
    Price,
    Seconds,
    SecureUrl,
    Share,
    Url,
    check_given_file,
    is_loopback,
    paths,
)
from engine.config import LogFormat, LogLevel
from engine.model.weights import DEFAULT_MODEL, default_cache_dir
from tenants.records import TenantLimits

ENV_PREFIX = "PARTYWALL_"
_GIVEN_FILES = (
    "ssl_certfile",
    "ssl_keyfile",
    "redis_password_file",
    "admin_token_file",
    "metrics_token_file",
    "pepper_file",
    "price_file",
    "webhook_secret_file",
)


class SettingsError(Exception):
    """A setting that cannot work; the message names it."""


def default_data_dir() -> Path:
    """Where the embedded store lives: `partywall` in the user's data folder (XDG)."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "partywall"


class Settings(BaseSettings):
    """What `partywall serve` can be told; see the module's docstring for where."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", env_ignore_empty=True, frozen=True
    )

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
    metrics_token_file: Location | None = Field(
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
    ssl_certfile: Location | None = Field(None, description="TLS certificate chain (PEM).")
    ssl_keyfile: Location | None = Field(None, description="TLS private key (PEM).")
    insecure: bool = Field(False, description="Accept clear text on an address beyond loopback.")
    ready_file: Location | None = Field(
        None,
        description="Written (mode 0600) once requests are served: URL, pid, new secrets. Without "
        "it, and a terminal to print them on, a first start leaves its secrets in data_dir.",
    )
    core_dumps: bool = Field(
        False,
        description="Let the service and its engine leave core files, and debuggers of their user "
        "attach: both show texts and secrets.",
    )

    log_format: LogFormat = Field(
        "auto", description="Lines of the log; auto is text on a terminal and JSON elsewhere."
    )
    log_level: LogLevel = Field(
        "info", description="What is logged at least; a line for every request is info."
    )
    otlp_endpoint: Url | None = Field(
        None,
        description="Collector that traces of requests go to (OpenTelemetry, OTLP over HTTP), such "
        "as http://127.0.0.1:4318; needs the extra partywall[otel].",
    )

    model: str = Field(
        DEFAULT_MODEL, description="Model: name, Hugging Face folder, GGUF file or hub id."
    )
    cache_dir: Location = Field(
        default_factory=default_cache_dir,
        description="Where converted weights, and digests of weights, are kept.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the model runs.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of weights and KV cache."
    )
    quantize: Literal["auto", "none", "int8", "int4"] = Field(
        "auto",
        description="Weights of matrix products: as the checkpoint has them, all in dtype, or "
        "rounded to 8 or 4 bits.",
    )
    kv_dtype: Literal["auto", "int8", "fp8"] = Field(
        "auto",
        description="Type of the KV cache; auto is dtype. In 8 bits it holds up to twice the "
        "tokens; fp8 is for GPUs.",
    )
    kv_memory: AutoSize = Field(
        None,
        description="Memory of the KV cache, such as 2GiB; auto is a share of what is free, in a "
        "container of what it may use; on a GPU what weights, the largest step and CUDA graphs "
        "leave.",
    )
    host_memory: ByteSize = Field(
        ByteSize(0),
        description="Host memory behind it, such as 4GiB, for evicted blocks and swapped requests.",
    )
    kept_disk: ByteSize = Field(
        ByteSize(1024**3),
        description="Disk, in data_dir, for blocks that are found again after a restart: those of "
        "pinned prompts and those that tenants lease; 0 keeps none.",
    )
    kept_interval_seconds: Seconds = Field(
        30.0, description="Between two looks for such blocks that are not on the disk yet."
    )
    kv_events: str | None = Field(
        None,
        description="Where the engine tells routers which blocks it holds: KV events in vLLM's "
        "format on a ZeroMQ PUB socket, such as tcp://127.0.0.1:5557 or ipc:///run/kv-events.",
    )
    kv_events_replay: str | None = Field(
        None,
        description="Where it sends them again to who has missed some, such as "
        "tcp://127.0.0.1:5558.",
    )
    kv_events_topic: str = Field("", description="Topic of these events.")
    block_size: Count = Field(16, description="Tokens of KV in a block.")
    max_context_tokens: AutoCount = Field(
        None, description="Prompt plus output of one request; auto is the model's own limit."
    )
    step_token_budget: AutoCount = Field(
        None,
        description="Tokens computed in one engine step, at most; auto is 128 to 2048 on a CPU, as "
        "was measured to suit it, 1024 to 8192 on a GPU, by its processors.",
    )
    itl_target_ms: float = Field(
        60.0,
        ge=0,
        allow_inf_nan=False,
        description="Prompts may draw out the step of running streams to this, or to twice its "
        "own time if that is longer; 0 is no bound.",
    )
    max_running_requests: AutoCount = Field(
        None,
        description="Requests in the engine's batch; one of several sequences counts for each. "
        "auto is 64 on a CPU, 64 to 512 on a GPU, by its memory.",
    )
    prefix_cache: bool = Field(True, description="Share KV blocks of equal prompt prefixes.")
    prefix_grouping: bool = Field(
        True, description="Attention reads blocks that requests of a step share once for all."
    )
    batch_invariant: bool = Field(
        False,
        description="Results do not depend on what else is computed, bit for bit; prompts take a "
        "little longer, and on a GPU blocks are not grouped.",
    )
    lease_share: Share = Field(
        0.25,
        description="Part of the KV blocks that a tenant's requests may ask to be kept, where it "
        "has no limit of its own (leased_blocks).",
    )
    eviction: Literal["arc", "lru"] = Field(
        "arc",
        description="Which cached block goes first: by adaptive replacement, or the least recently "
        "used one.",
    )
    recovery: Literal["auto", "swap", "recompute"] = Field(
        "auto",
        description="How a preempted request comes back; auto is what is predicted to be faster.",
    )
    min_run_tokens: Count = Field(
        16, description="Tokens for which a request that is back is not preempted again."
    )
    threads: AutoCount = Field(
        None,
        description="CPU threads of the model; auto is one a core it may use, or two where a core "
        "runs two at once and that was faster at the first start.",
    )
    tensor_parallel: Count = Field(
        1,
        description="Processes of this machine that compute the model together, on a CPU; each has "
        "a part of every layer and of threads and kv_memory. More than one needs kept_disk 0.",
    )
    cluster: bool = Field(
        False,
        description="Run engines as replicas on Ray Serve; needs the extra partywall[cluster] and "
        "kept_disk 0.",
    )
    replicas: Count = Field(1, description="Their number; each has threads and kv_memory.")
    max_replicas: Count | None = Field(
        None,
        description="Up to how many there are while they are needed; without it always replicas.",
    )
    replica_queue_seconds: Seconds = Field(
        2.0,
        description="What may wait at a replica on average, in seconds that its prompts take; with "
        "more, or with 85 % of KV memory in use, there is another replica.",
    )
    replica_idle_seconds: Seconds = Field(
        300.0, description="For how long fewer replicas must have been enough before one ends."
    )
    ray_address: str | None = Field(
        None,
        description="Ray cluster that they run on, such as 10.0.0.1:6379; without it one on this "
        "machine, for as long as the service runs.",
    )
    redeploy: bool = Field(
        False,
        description="Have these settings replace those of the cluster's replicas even if they were "
        "replaced by them: a service that is started again with old ones joins instead.",
    )
    speculation: Literal["off", "lookup", "draft"] = Field(
        "lookup",
        description="Several tokens in one step where guesses come true: `lookup` finds them in "
        "the conversation and in earlier answers of the same namespace, `draft` also asks a small "
        "model.",
    )
    draft_model: str | None = Field(
        None,
        description="The small model, which has the model's vocabulary: name, Hugging Face folder, "
        "GGUF file or hub id. Its KV cache is a part of kv_memory.",
    )
    speculation_tokens: Count = Field(
        16, description="Guesses in one step for a sequence, at most; fewer where they do not pay."
    )
    token_cadence_ms: float = Field(
        0.0,
        ge=0,
        le=10_000,
        allow_inf_nan=False,
        description="Least time between two tokens of a stream, so that nobody sees which guesses "
        "came true; 0 is none.",
    )
    kernel_paths: Literal["auto", "floats", "words", "tiles"] = Field(
        "auto",
        description="How a CPU multiplies: in float32, by pairs or bytes, by matrix tiles; auto "
        "is what was fastest at the first start.",
    )
    rebuild_seconds: Seconds = Field(
        60.0, description="How long the streams of a dead engine wait until it is back."
    )
    engine_silence_seconds: Seconds = Field(
        120.0,
        description="An engine that is asked and says nothing for so long hangs, and is killed; "
        "more than any step takes.",
    )
    engine_loading_seconds: Seconds = Field(
        900.0,
        description="One that gets no further for so long while it loads is killed, too; it gets "
        "further with its libraries, weights, memory and graphs.",
    )
    fairness: Literal["vtc", "fcfs"] = Field(
        "vtc",
        description="Who is served next: virtual token counters of tenants, or who came first.",
    )
    prompt_token_price: Price = Field(
        1.0, description="What a computed prompt token counts in a tenant's service."
    )
    cached_token_price: float = Field(
        0.1, ge=0, allow_inf_nan=False, description="What one found in the cache counts."
    )
    output_token_price: Price = Field(2.0, description="What an output token counts.")

    redis_url: str | None = Field(
        None,
        description="Redis or Valkey to use, not the embedded one; of a Redis Cluster any server, "
        "as redis+cluster://HOST:PORT.",
    )
    redis_password_file: Location | None = Field(
        None, description="File that holds the password for redis_url."
    )
    data_dir: Location = Field(
        default_factory=default_data_dir,
        description="The embedded store, the admin token's hash, blocks that are kept, and usage "
        "that is not in the store yet.",
    )
    store_memory: ByteSize = Field(
        ByteSize(1024**3),
        ge=16 * 1024**2,
        description="Memory of the embedded store; full, it refuses writes.",
    )
    admin_writes_per_minute: DefaultCount = Field(
        600,
        description="Writes that each holder of an admin token, or person, may make in a replica.",
    )
    audit_max_entries: Count = Field(
        1_000_000,
        description="Admin writes that the audit keeps, about; the oldest go of who has the most.",
    )
    audit_file: Location | None = Field(
        None, description="File that has each line of the audit (JSON) before that may go."
    )
    pepper_file: Location | None = Field(
        None,
        description="Secret that API key hashes and the store's encryption depend on; by default "
        "data_dir has one.",
    )
    other_pepper_files: str | None = Field(
        None,
        description="Files, with commas, of further peppers that are known: former ones until the "
        "store is rotated, the next one before it.",
    )
    demo_tenant: bool = Field(True, description="Create the tenant 'demo' on the first start.")
    admin_token_file: Location | None = Field(
        None, description="File that holds the admin token; by default the first start makes one."
    )
    oidc_issuer: SecureUrl | None = Field(
        None,
        description="OpenID provider whose JSON Web Tokens `/admin` takes, as it names itself, "
        "such as https://id.example.com/realms/staff; https, but on this machine.",
    )
    oidc_audience: str | None = Field(
        None,
        min_length=1,
        description="What those tokens must be for: this service, as the provider knows it.",
    )
    oidc_claim: str = Field(
        "partywall",
        min_length=1,
        description="Their claim that says what a person may: `admin`, `read`, `tenant:ID`, as in "
        "a line of admin_token_file; nobody without it gets in.",
    )
    oidc_client_id: str | None = Field(
        None,
        min_length=1,
        description="Public client as which pages have people sign in there; `/admin/sign-in` "
        "tells it.",
    )
    oidc_clients: str | None = Field(
        None,
        min_length=1,
        description="Further clients, with commas, to which those tokens may have been issued "
        "(`azp`); without these and oidc_client_id, to any of the provider's.",
    )
    oidc_max_token_seconds: Seconds = Field(
        86_400.0, description="Longest lifetime of those tokens, from `iat` to `exp`."
    )

    price_file: Location | None = Field(
        None, description="What tokens cost, by model (TOML); budgets need it."
    )
    webhook_url: SecureUrl | None = Field(
        None, description="Told of budgets that are reached; https, but to this machine."
    )
    webhook_secret_file: Location | None = Field(
        None, description="File with the secrets that sign it, a line each: whsec_ and base64."
    )
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
        "in a header.",
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
        description="How long stored responses, conversations and chat completions are kept.",
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

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile go together")
        for name in _GIVEN_FILES:
            path = getattr(self, name)
            if path is not None:
                check_given_file(name, path)
        for path in paths(self.other_pepper_files):
            check_given_file("other_pepper_files", path)
        if self.redis_password_file is not None:
            if self.redis_url is None:
                raise ValueError("redis_password_file goes with redis_url")
            if urlsplit(self.redis_url).password is not None:
                raise ValueError("redis_url has a password, and redis_password_file another")
        if (self.webhook_url is None) != (self.webhook_secret_file is None):
            raise ValueError("webhook_url and webhook_secret_file go together")
        if self.open_metrics and self.metrics_token_file is not None:
            raise ValueError("metrics_token_file goes without open_metrics")
        if (self.oidc_issuer is None) != (self.oidc_audience is None):
            raise ValueError("oidc_issuer and oidc_audience go together")
        for name in ("oidc_client_id", "oidc_clients"):
            if getattr(self, name) is not None and self.oidc_issuer is None:
                raise ValueError(f"{name} goes with oidc_issuer")
        budget, running = self.step_token_budget, self.max_running_requests
        if budget is not None and running is not None and running > budget:
            raise ValueError("step_token_budget must be at least max_running_requests")
        if (self.speculation == "draft") != (self.draft_model is not None):
            raise ValueError("draft_model goes with speculation draft, and that with a draft_model")
        if self.tensor_parallel > 1 and self.kept_disk:
            raise ValueError("kept_disk must be 0 with tensor_parallel: no part keeps its blocks")
        self._check_cluster()
        if self.recovery == "swap" and not self.host_memory:
            raise ValueError("recovery: swap needs host_memory")
        return self

    def _check_cluster(self) -> None:
        if not self.cluster:
            if self.replicas > 1 or self.max_replicas is not None or self.ray_address is not None:
                raise ValueError("replicas, max_replicas and ray_address go with cluster")
            if self.redeploy:
                raise ValueError("redeploy goes with cluster")
            return
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("max_replicas must be at least replicas")
        if self.kept_disk:
            raise ValueError("kept_disk must be 0 with cluster: replicas keep no blocks on disk")
        if self.kv_events is not None:
            raise ValueError("kv_events goes without cluster: replicas tell their front doors")
        if max(self.replicas, self.max_replicas or 1) > 1 and self.kv_memory is None:
            raise ValueError("kv_memory must be given with replicas: one machine may have several")

    @property
    def store_url(self) -> str | None:
        """`redis_url` with the password out of its file. Raises `OSError`."""
        if self.redis_url is None or self.redis_password_file is None:
            return self.redis_url
        password = quote(self.redis_password_file.read_text().strip(), safe="")
        parts = urlsplit(self.redis_url)
        user, _, address = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}:{password}@{address}"))

    @property
    def default_limits(self) -> TenantLimits:
        """What holds for tenants that have no limits set."""
        return TenantLimits(
            requests_per_minute=self.default_requests_per_minute,
            concurrent_streams=self.default_concurrent_streams,
            sockets=self.default_sockets,
            queued_requests=self.default_queued_requests,
            stored_bytes=self.default_stored_bytes,
        )

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


def load_settings(**given: object) -> Settings:
    """The settings from `given` (the command line), the environment and the defaults.

    Raises `SettingsError`, naming the setting the way a user writes it.
    """
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise SettingsError(message) from None
        name = str(first["loc"][0])
        raise SettingsError(f"{option_name(name)} ({env_name(name)}): {message}") from None


def option_name(field: str) -> str:
    """The command-line option of a field."""
    return "--" + field.replace("_", "-")


def env_name(field: str) -> str:
    """The environment variable of a field."""
    return ENV_PREFIX + field.upper()
