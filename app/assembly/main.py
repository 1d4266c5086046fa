"""From settings to a running service, and back to a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import socket
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from app.assembly.check import require
from app.assembly.places import check_places
from app.assembly.server import Listener, bind, local_url, run_server
from app.background.sweeping import sweep
from app.background.webhooks import Webhook, signing_keys
from app.cluster.launch import new_cluster
from app.setting_kinds import names, networks, origins
from app.settings import Settings
from app.signals import on_signals
from app.stores import PublicTenantStore, demo_tenant, open_stores
from app.transport.accepting import allow_files
from app.transport.bounds import Bounds
from app.transport.connection_bounds import ConnectionBounds
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig
from engine.disk.folder import remove_all
from engine.model.weights import ModelUnavailable, resolve_model
from tenants.errors import InvalidField
from tenants.store import TenantStore
from tenants.usage.prices import FREE, Prices, prices_of, read_prices

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from transformers import PreTrainedTokenizerBase

    from app.admin.oidc import People
    from app.admin.token import AdminToken
    from app.context import Service
    from app.generation.tracing import Tracing
    from engine.client import EngineClient

_FAREWELL_SECONDS = 2.0
_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 * 1024
_COLLECTION_THRESHOLDS = (5_000, 10, 20)
"""New objects that are left after which the young are collected, and multiples for the older."""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """What an operator learns when the service is ready; only secrets that this start made."""

    url: str
    admin_url: str
    pid: int
    tenant: str | None
    api_key: str | None
    admin_token: str | None


def engine_config(
    settings: Settings, folder: Path, draft_folder: Path | None = None
) -> EngineConfig:
    """The engine's part of the settings, with the folders of its models."""
    return EngineConfig(
        model_path=str(folder),
        device=settings.device,
        dtype=settings.dtype,
        quantize=settings.quantize,
        kv_dtype=settings.kv_dtype,
        kv_memory_bytes=None if settings.kv_memory is None else int(settings.kv_memory),
        host_memory_bytes=int(settings.host_memory),
        kept_dir=str(_kept_dir(settings)) if settings.kept_disk else None,
        kept_bytes=max(1, int(settings.kept_disk)),
        kept_seconds=settings.kept_interval_seconds,
        kv_events=settings.kv_events,
        kv_events_replay=settings.kv_events_replay,
        kv_events_topic=settings.kv_events_topic,
        block_size=settings.block_size,
        max_context_tokens=settings.max_context_tokens,
        step_token_budget=settings.step_token_budget,
        itl_target_ms=settings.itl_target_ms,
        max_running_requests=settings.max_running_requests,
        prefix_cache=settings.prefix_cache,
        prefix_grouping=settings.prefix_grouping,
        batch_invariant=settings.batch_invariant,
        lease_share=settings.lease_share,
        eviction=settings.eviction,
        fairness=settings.fairness,
        prompt_token_price=settings.prompt_token_price,
        cached_token_price=settings.cached_token_price,
        output_token_price=settings.output_token_price,
        speculation=settings.speculation,
        draft_model_path=None if draft_folder is None else str(draft_folder),
        speculation_tokens=settings.speculation_tokens,
        recovery=settings.recovery,
        min_run_tokens=settings.min_run_tokens,
        threads=settings.threads,
        tensor_parallel=settings.tensor_parallel,
        kernel_paths=settings.kernel_paths,
        cache_dir=str(settings.cache_dir),
        log_format=settings.log_format,
        log_level=settings.log_level,
        core_dumps=settings.core_dumps,
    )


def draft_folder(settings: Settings, progress: Progress) -> Path | None:
    """The folder of the draft model, if there is to be one. Raises `ModelUnavailable`."""
    if settings.draft_model is None:
        return None
    try:
        return resolve_model(settings.draft_model, settings.cache_dir, progress)
    except ModelUnavailable as error:
        raise ModelUnavailable(f"draft_model: {error}") from error


def service_prices(settings: Settings, model_id: str) -> Prices:
    """What the served model's tokens cost. Raises `ValueError` that says what is wrong."""
    if settings.price_file is None:
        return FREE
    try:
        table = tomllib.loads(settings.price_file.read_text(), parse_float=Decimal)
        return prices_of(read_prices(table), model_id)
    except (InvalidField, ValueError) as error:
        raise ValueError(f"price_file: {error}") from None


def service_webhook(settings: Settings) -> Webhook | None:
    """Where the service tells what happens. Raises `ValueError` that says what is wrong."""
    if settings.webhook_url is None or settings.webhook_secret_file is None:
        return None
    try:
        keys = signing_keys(settings.webhook_secret_file.read_text())
    except ValueError as error:
        raise ValueError(f"webhook_secret_file: {error}") from None
    return Webhook(url=settings.webhook_url, keys=keys)


def service_people(settings: Settings) -> People | None:
    """Those who may sign in; nobody is asked about them yet."""
    if settings.oidc_issuer is None or settings.oidc_audience is None:
        return None
    from app.admin.issuer import Issuer
    from app.admin.oidc import People

    return People(
        Issuer(settings.oidc_issuer),
        settings.oidc_audience,
        settings.oidc_claim,
        settings.oidc_client_id,
        names(settings.oidc_clients),
        settings.oidc_max_token_seconds,
    )


def service_bounds(settings: Settings) -> Bounds:
    """The service's part of the settings."""
    return Bounds(
        send_deadline_seconds=settings.send_deadline_seconds,
        max_message_bytes=settings.max_message_bytes,
        max_queued_requests=settings.max_queued_requests,
        max_body_bytes=settings.max_message_bytes,
        response_ttl_seconds=settings.response_ttl_seconds,
        resume_grace_seconds=settings.resume_grace_seconds,
        metrics_tenants=settings.metrics_tenants,
        admin_writes_per_minute=settings.admin_writes_per_minute,
        default_max_output_tokens=settings.default_max_output_tokens,
        lease_seconds=settings.lease_seconds,
        ignores_unknown_fields=settings.unknown_fields == "ignore",
        page_origins=origins(settings.allowed_origins or ""),
    )


def connection_bounds(settings: Settings) -> ConnectionBounds:
    """The connections' part of the settings."""
    return ConnectionBounds(
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_address,
        trusted_proxies=networks(settings.trusted_proxies),
        max_header_bytes=settings.max_header_bytes,
        max_body_bytes=settings.max_message_bytes,
        header_deadline_seconds=settings.header_deadline_seconds,
        body_deadline_seconds=settings.body_deadline_seconds,
        send_deadline_seconds=settings.send_deadline_seconds,
    )


async def run_service(
    settings: Settings, progress: Progress, welcome: Callable[[Welcome], None]
) -> None:
    """Start everything, serve until SIGTERM or SIGINT, and stop everything.

    `progress` is told what the start is doing, `welcome` what an operator needs once requests are
    served. Raises `OSError` for an address that cannot be bound, `ValueError` for a place that
    cannot be used, `EngineError` for a model that cannot be served, `StoreUnavailable` for a store
    that does not answer, and `CancelledError` when it is stopped before it is ready.
    """
    async with contextlib.AsyncExitStack() as stack:
        end = stack.enter_context(_cancelled_by_signals())
        require(check_places(settings))
        sockets = _listening(settings, stack)
        allow_files(settings.max_connections)
        sweep()
        folder = await asyncio.to_thread(
            resolve_model, settings.model, settings.cache_dir, progress
        )
        model_id = _model_id(settings.model, folder)
        prices, webhook = service_prices(settings, model_id), service_webhook(settings)
        drafting = await asyncio.to_thread(draft_folder, settings, progress)
        progress(f"loading {settings.model}")
        engine = _new_engine(settings, folder, drafting)
        engine_started = _start(engine, stack)
        stores = await stack.enter_async_context(
            open_stores(
                settings,
                owner=True,
                tenant_store=PublicTenantStore if settings.is_exposed else TenantStore,
            )
        )
        await asyncio.to_thread(_remove_what_is_not_kept, settings)
        tokenizer = await asyncio.to_thread(_load_tokenizer, folder)
        from app.admin.door import Door
        from app.admin.scraping import read_scraping
        from app.admin.token import load_admin_token
        from app.assembly.service import create_admin_app, create_app

        await engine_started
        _tell_logit_error(settings, engine, progress)
        admin_token = load_admin_token(settings.data_dir, settings.admin_token_file)
        app = create_app(
            engine,
            stores,
            tokenizer,
            model_id,
            service_bounds(settings),
            settings.tool_format,
            settings.reasoning_format,
            prices,
            webhook,
            _new_tracing(settings, model_id, stack),
        )
        door = Door(admin_token, stores.operator_tokens, service_people(settings))
        scraping = read_scraping(settings.metrics_token_file, settings.open_metrics)
        apps = (app, create_admin_app(app.state.service, door, scraping))
        await run_server(
            _listeners(settings, sockets, apps),
            settings,
            on_ready=lambda: _ready(app.state.service, settings, sockets, admin_token, welcome),
            drain=lambda hurry: drain(app.state.service, settings.drain_seconds, hurry),
        )
        end()


def _kept_dir(settings: Settings) -> Path:
    return settings.data_dir / "kept"


def _remove_what_is_not_kept(settings: Settings) -> None:
    """An earlier service may have kept blocks that nobody would remove with their owners."""
    if not (settings.kept_disk and settings.prefix_cache):
        remove_all(_kept_dir(settings))


def _new_engine(settings: Settings, folder: Path, drafting: Path | None) -> EngineClient:
    config = engine_config(settings, folder, drafting)
    if settings.cluster:
        return new_cluster(settings, config)
    return ProcessEngine(
        config,
        settings.rebuild_seconds,
        settings.engine_silence_seconds,
        settings.engine_loading_seconds,
        settings.token_cadence_ms / 1000,
    )


def _tell_logit_error(settings: Settings, engine: EngineClient, progress: Progress) -> None:
    if settings.quantize in ("int8", "int4"):
        error = engine.info.logit_error
        progress(f"{settings.quantize}: logits differ by {error:.1%} from the original's")


def _new_tracing(
    settings: Settings, model_id: str, stack: contextlib.AsyncExitStack
) -> Tracing | None:
    """What tells a collector of requests, until the stack ends. Raises `ValueError`."""
    if settings.otlp_endpoint is None:
        return None
    try:
        from app.generation.tracing import Tracing
    except ModuleNotFoundError as error:
        raise ValueError(
            f"otlp_endpoint: there is no {error.name}; pip install 'partywall[otel]'"
        ) from None
    tracing = Tracing(settings.otlp_endpoint, model_id)
    stack.push_async_callback(asyncio.to_thread, tracing.close)
    return tracing


def _listeners(
    settings: Settings, sockets: Sequence[socket.socket], apps: Sequence[Starlette]
) -> list[Listener]:
    """Each app behind its socket."""
    bounds = connection_bounds(settings)
    return [
        Listener(socket=listening, app=served, bounds=bounds)
        for listening, served in zip(sockets, apps, strict=True)
    ]


def _listening(settings: Settings, stack: contextlib.AsyncExitStack) -> list[socket.socket]:
    """The tenants' socket and the operators', which `stack` closes."""
    addresses = (
        (settings.host, settings.port),
        (settings.admin_host, settings.resolved_admin_port),
    )
    return [stack.enter_context(contextlib.closing(bind(host, port))) for host, port in addresses]


async def _ready(
    service: Service,
    settings: Settings,
    sockets: Sequence[socket.socket],
    admin_token: AdminToken,
    welcome: Callable[[Welcome], None],
) -> None:
    """Requests can be served: tell the operator, and leave to them what the start took."""
    await service.engine.stats()
    tenant, api_key = None, None
    if settings.demo_tenant and not settings.is_exposed:
        is_first_start = admin_token.created is not None
        tenant, api_key = await demo_tenant(service.stores.tenants, is_first_start)
    what = Welcome(
        url=local_url(settings.host, sockets[0], settings.uses_tls),
        admin_url=local_url(settings.admin_host, sockets[1], settings.uses_tls),
        pid=os.getpid(),
        tenant=tenant,
        api_key=api_key,
        admin_token=admin_token.created,
    )
    _spare_collections()
    _give_back_memory()
    welcome(what)


def _spare_collections() -> None:
    """Make full garbage collections short and rare: each one stops all streams.

    What a start has made stays for good, and need not be looked at again (0.1 s each time).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


def _give_back_memory() -> None:
    """Let the system have the memory of large bodies and texts again as soon as they are gone.

    Otherwise glibc raises the size from which it does so to that of the largest body seen, and one
    heap for each thread grows by the bodies of its worst moment.
    """
    with contextlib.suppress(AttributeError):  # of another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


@contextlib.contextmanager
def _cancelled_by_signals() -> Iterator[Callable[[], None]]:
    """SIGTERM and SIGINT cancel the current task, once: what it then undoes is not cut off.

    Where others have handled them, and it ends for that, the yielded function is to be called.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_ending = False

    def end() -> None:
        nonlocal is_ending
        is_ending = True

    def cancel(*_: object) -> None:
        if not is_ending:
            # A signal handler runs between any two instructions, and wakes no event loop.
            loop.call_soon_threadsafe(task.cancel)
        end()

    with on_signals(cancel):
        yield end


def _start(engine: EngineClient, stack: contextlib.AsyncExitStack) -> asyncio.Task[None]:
    """Start the engine, which the stack will close, however far it has come."""
    start = asyncio.create_task(engine.start())

    async def close() -> None:
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await engine.close()

    stack.push_async_callback(close)
    return start


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer; what makes the application is imported on the way.

    Together that takes more than a second, in which the engine starts already.
    """
    import app.assembly.service  # noqa: F401
    from app.prompt.tokenizer import load_tokenizer

    return load_tokenizer(folder)


async def drain(service: Service, drain_seconds: float, hurry: asyncio.Event) -> None:
    """Let running streams finish for a while, suspend the rest, and see everybody off."""
    service.draining.begin()
    finished = asyncio.create_task(service.draining.finished())
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait(
        {finished, hurried}, timeout=drain_seconds, return_when=asyncio.FIRST_COMPLETED
    )
    for waiting in (finished, hurried):
        waiting.cancel()
    service.draining.end()
    await service.responses.suspend()
    # What cannot be suspended ends with the engine.
    await service.engine.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            await service.draining.finished()


def _model_id(model: str, folder: Path) -> str:
    """What clients call the model: its name or hub id, or the last part of a local path."""
    path = Path(model).expanduser()
    if path.is_file():
        return path.stem
    return folder.name if path.is_dir() else model
