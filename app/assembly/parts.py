"""Each part's share of the settings."""

from __future__ import annotations

import asyncio
import contextlib
import tomllib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from app.background.webhooks import Webhook, signing_keys
from app.cluster.launch import new_cluster
from app.settings import Settings
from app.settings.kinds import hosts, names, networks, origins
from app.transport.bounds import Bounds, ConnectionBounds
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig
from engine.model.weights import ModelUnavailable, resolve_model
from tenants.errors import InvalidField
from tenants.usage.prices import NO_PRICES, PriceList, prices_of, read_prices

if TYPE_CHECKING:
    from app.admin.oidc import People
    from app.generation.tracing import Tracing
    from app.pictures.eyes import Eyes
    from engine.client import EngineClient

Progress = Callable[[str], None]
Part = TypeVar("Part")


def _part(kind: type[Part], settings: Settings, **own: object) -> Part:
    """A part with the settings that it has under the same names, and what is its `own`."""
    shared = kind.__annotations__.keys() & Settings.model_fields.keys()
    return kind(**{name: getattr(settings, name) for name in shared} | own)


def engine_config(
    settings: Settings, folder: Path, draft_folder: Path | None = None
) -> EngineConfig:
    """The engine's part of the settings, with the folders of its models."""
    return _part(
        EngineConfig,
        settings,
        model_path=str(folder),
        draft_model_path=None if draft_folder is None else str(draft_folder),
        cache_dir=str(settings.cache_dir),
        kv_memory_bytes=None if settings.kv_memory is None else int(settings.kv_memory),
        host_memory_bytes=int(settings.host_memory),
        adapter_memory_bytes=int(settings.adapter_memory),
        picture_memory_bytes=int(settings.picture_memory),
        kept_dir=str(settings.kept_dir) if settings.kept_disk else None,
        kept_bytes=max(1, int(settings.kept_disk)),
        kept_seconds=settings.kept_interval_seconds,
    )


def service_bounds(settings: Settings) -> Bounds:
    """The service's part of the settings."""
    return _part(
        Bounds,
        settings,
        max_body_bytes=settings.max_message_bytes,
        ignores_unknown_fields=settings.unknown_fields == "ignore",
        page_origins=origins(settings.allowed_origins or ""),
        max_image_bytes=int(settings.max_image_bytes),
        image_hosts=hosts(settings.image_hosts or ""),
    )


def connection_bounds(settings: Settings) -> ConnectionBounds:
    """The connections' part of the settings."""
    return _part(
        ConnectionBounds,
        settings,
        max_body_bytes=settings.max_message_bytes,
        trusted_proxies=networks(settings.trusted_proxies),
    )


def new_engine(settings: Settings, folder: Path, draft_folder: Path | None) -> EngineClient:
    """What computes, in a process of this machine or in a cluster; it is not started yet."""
    config = engine_config(settings, folder, draft_folder)
    if settings.cluster:
        return new_cluster(settings, config)
    return ProcessEngine(
        config,
        settings.rebuild_seconds,
        settings.engine_silence_seconds,
        settings.engine_loading_seconds,
        settings.token_cadence_ms / 1000,
    )


def new_eyes(
    settings: Settings, engine: EngineClient, folder: Path, stack: contextlib.AsyncExitStack
) -> Eyes | None:
    """What looks at pictures, until the stack ends; `None` where the model sees none.

    It is opened beside everything else: that takes seconds.
    """
    if engine.info.picture_token_id is None:
        return None
    from app.pictures.eyes import Eyes
    from app.pictures.picture import BadPicture

    eyes = Eyes(folder, settings.max_image_pixels, settings.image_seconds)

    async def open_early() -> None:
        with contextlib.suppress(BadPicture):  # it is logged, and every picture will tell
            await eyes.open()

    opening = asyncio.create_task(open_early())
    stack.callback(eyes.close)
    stack.callback(opening.cancel)
    return eyes


def draft_folder(settings: Settings, progress: Progress) -> Path | None:
    """The folder of the draft model, if there is to be one. Raises `ModelUnavailable`."""
    if settings.draft_model is None:
        return None
    try:
        return resolve_model(settings.draft_model, settings.cache_dir, progress)
    except ModelUnavailable as error:
        raise ModelUnavailable(f"draft_model: {error}") from error


def service_prices(settings: Settings, model_id: str) -> PriceList:
    """What the served model's tokens cost. Raises `ValueError` that says what is wrong."""
    if settings.price_file is None:
        return NO_PRICES
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


def new_tracing(
    settings: Settings, model_id: str, stack: contextlib.AsyncExitStack
) -> Tracing | None:
    """What tells a collector of requests, until the stack ends. Raises `ValueError`."""
    if settings.otlp_endpoint is None:
        return None
    try:
        from app.generation.tracing import Tracing
    except ModuleNotFoundError as error:
        raise ValueError(
            f"otlp_endpoint: there is no {error.name}; pip install 'partywall[otel]', or in a "
            "clone .venv/bin/python install.py otel"
        ) from None
    tracing = Tracing(settings.otlp_endpoint, model_id)
    stack.push_async_callback(asyncio.to_thread, tracing.close)
    return tracing


def served_name(model: str, folder: Path) -> str:
    """What clients call the model: its name or hub id, or the last part of a local path."""
    path = Path(model).expanduser()
    if path.is_file():
        return path.stem
    return folder.name if path.is_dir() else model
