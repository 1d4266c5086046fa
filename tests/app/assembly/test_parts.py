"""Each part of the service is given its share of the settings."""

from dataclasses import fields
from pathlib import Path

import pytest

from app.assembly.parts import (
    connection_bounds,
    engine_config,
    served_name,
    service_bounds,
    service_prices,
    service_webhook,
)
from app.settings import Settings, SettingsError, load_settings
from app.transport.bounds import Bounds, ConnectionBounds
from engine.config import EngineConfig
from tenants.usage.prices import NO_PRICES

ENGINE_SETTINGS = {
    "cache_dir": "/cache",
    "device": "cpu",
    "dtype": "float32",
    "kv_events": "tcp://127.0.0.1:5557",
    "kv_events_replay": "tcp://127.0.0.1:5558",
    "kv_events_topic": "kv",
    "log_format": "json",
    "log_level": "warning",
    "core_dumps": True,
    "block_size": 32,
    "max_context_tokens": 512,
    "step_token_budget": 256,
    "itl_target_ms": 40.0,
    "max_running_requests": 8,
    "prefix_cache": False,
    "eviction": "lru",
    "quantize": "int8",
    "kv_dtype": "fp8",
    "prefix_grouping": False,
    "batch_invariant": True,
    "threads": 3,
    "tensor_parallel": 2,
    "kernel_paths": "words",
    "speculation": "off",
    "speculation_tokens": 3,
    "fairness": "fcfs",
    "lease_share": 0.5,
    "recovery": "swap",
    "min_run_tokens": 5,
    "prompt_token_price": 3.0,
    "cached_token_price": 0.5,
    "output_token_price": 4.0,
}


def test_the_engine_is_given_every_setting_that_is_its_own() -> None:
    own = Settings.model_fields.keys() & set(EngineConfig.__struct_fields__)
    assert ENGINE_SETTINGS.keys() == own
    config = engine_config(
        load_settings(**ENGINE_SETTINGS, kv_memory="1GiB", host_memory="2GiB", kept_disk="0"),
        Path("/model"),
    )
    assert {name: getattr(config, name) for name in own} == ENGINE_SETTINGS
    assert (config.model_path, config.kv_memory_bytes) == ("/model", 2**30)
    assert config.host_memory_bytes == 2**31


def test_the_service_is_given_every_limit_that_is_a_setting() -> None:
    own = Settings.model_fields.keys() & {field.name for field in fields(Bounds)}
    given: dict[str, object] = {name: index for index, name in enumerate(sorted(own), 1)}
    given["adapter_dir"] = Path("/adapters")
    limits = service_bounds(load_settings(**given | {"image_hosts": "a.example, B.example"}))
    given["image_hosts"] = ("a.example", "b.example")
    assert {name: getattr(limits, name) for name in own} == given
    assert limits.max_body_bytes == limits.max_message_bytes


def test_connections_are_given_every_bound_that_is_a_setting() -> None:
    own = Settings.model_fields.keys() & {field.name for field in fields(ConnectionBounds)}
    given: dict[str, object] = {name: index for index, name in enumerate(sorted(own), 5000)}
    proxies = {"trusted_proxies": "10.0.0.0/8, ::1"}
    bounds = connection_bounds(load_settings(**given | proxies, max_message_bytes=7))
    del given["trusted_proxies"]
    assert {name: getattr(bounds, name) for name in given} == given
    assert [str(network) for network in bounds.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    assert bounds.max_body_bytes == 7


def test_bounds_by_default_are_those_of_settings_by_default() -> None:
    assert service_bounds(load_settings()) == Bounds()
    assert connection_bounds(load_settings()) == ConnectionBounds()


def test_clients_call_a_local_model_by_the_last_part_of_its_path(tmp_path: Path) -> None:
    file, folder = tmp_path / "small.gguf", tmp_path / "large"
    file.touch()
    folder.mkdir()
    assert served_name(str(file), tmp_path / "converted") == "small"
    assert served_name(str(folder), folder) == "large"
    assert served_name("acme/model", folder) == "acme/model"


def test_prices_are_those_of_the_served_model(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('currency = "EUR"\n[models.small]\ninput = 0.1\noutput = 0.4\n')
    settings = load_settings(price_file=file)
    assert service_prices(settings, "small").model.output == 400
    assert service_prices(load_settings(), "small") == NO_PRICES
    with pytest.raises(ValueError, match="price_file: models: there are no prices for 'large'"):
        service_prices(settings, "large")
    file.write_text("currency")
    with pytest.raises(ValueError, match="price_file: "):
        service_prices(settings, "small")


def test_a_webhook_needs_a_secret_and_a_safe_address(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    for url in ("https://example.com/hook", "http://127.0.0.1:9/hook", "http://[::1]/"):
        webhook = service_webhook(load_settings(webhook_url=url, webhook_secret_file=file))
        assert webhook is not None
        assert (webhook.url, len(webhook.keys)) == (url, 1)
    users = ("https://me@example.com", "https://:password@example.com")
    ports = ("https://example.com:99999", "https://example.com:port", "https://example.com:0")
    for url in (
        "http://example.com/",
        "ftp://example.com",
        "https://",
        "https://a\n/",
        *users,
        *ports,
    ):
        with pytest.raises(SettingsError, match="--webhook-url"):
            load_settings(webhook_url=url, webhook_secret_file=file)
    with pytest.raises(SettingsError, match="webhook_url and webhook_secret_file go together"):
        load_settings(webhook_url="https://example.com")
    file.write_text("secret")
    settings = load_settings(webhook_url="https://example.com", webhook_secret_file=file)
    with pytest.raises(ValueError, match="webhook_secret_file: secret 1"):
        service_webhook(settings)
    assert service_webhook(load_settings()) is None
