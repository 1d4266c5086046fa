"""From settings to a running service, and back to a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.assembly.check import require
from app.assembly.parts import (
    Progress,
    connection_bounds,
    draft_folder,
    new_engine,
    new_eyes,
    new_tracing,
    served_name,
    service_bounds,
    service_people,
    service_prices,
    service_webhook,
)
from app.assembly.places import check_places
from app.assembly.process import cancelled_by_signals, give_back_memory, spare_collections
from app.assembly.server import Listener, Server, bind, local_url
from app.background.sweeping import sweep
from app.settings import Settings
from app.stores import PublicTenantStore, demo_tenant, open_stores
from app.transport.accepting import allow_files
from engine.disk.folder import remove_all
from engine.model.weights import resolve_model
from tenants.store import TenantStore

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from transformers import PreTrainedTokenizerBase

    from app.admin.token import AdminToken
    from app.context import Service
    from engine.client import EngineClient

_FAREWELL_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """What an operator learns when the service is ready; only secrets that this start made."""

    url: str
    admin_url: str
    pid: int
    tenant: str | None
    api_key: str | None
    admin_token: str | None


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
        end = stack.enter_context(cancelled_by_signals())
        require(check_places(settings))
        sockets = _listening(settings, stack)
        allow_files(settings.max_connections)
        sweep()
        folder = await asyncio.to_thread(
            resolve_model, settings.model, settings.cache_dir, progress
        )
        model_id = served_name(settings.model, folder)
        prices, webhook = service_prices(settings, model_id), service_webhook(settings)
        drafting = await asyncio.to_thread(draft_folder, settings, progress)
        progress(f"loading {settings.model}")
        engine = new_engine(settings, folder, drafting)
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
        from app.admin.ops import read_scraping
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
            new_tracing(settings, model_id, stack),
            new_eyes(settings, engine, folder, stack),
        )
        door = Door(admin_token, stores.operator_tokens, service_people(settings))
        scraping = read_scraping(settings.metrics_token_file, settings.open_metrics)
        apps = (app, create_admin_app(app.state.service, door, scraping))
        server = Server(
            _listeners(settings, sockets, apps),
            settings,
            on_ready=lambda: _ready(app.state.service, settings, sockets, admin_token, welcome),
            drain=lambda hurry: drain(app.state.service, settings.drain_seconds, hurry),
        )
        await server.serve()
        end()


def _remove_what_is_not_kept(settings: Settings) -> None:
    """An earlier service may have kept blocks that nobody would remove with their owners."""
    if not (settings.kept_disk and settings.prefix_cache):
        remove_all(settings.kept_dir)


def _tell_logit_error(settings: Settings, engine: EngineClient, progress: Progress) -> None:
    if settings.quantize in ("int8", "int4"):
        error = engine.info.logit_error
        progress(f"{settings.quantize}: logits differ by {error:.1%} from the original's")


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
    spare_collections()
    give_back_memory()
    welcome(what)


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
    service.gate.end()
    await service.responses.suspend()
    # What cannot be suspended ends with the engine.
    await service.engine.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            await service.draining.finished()
