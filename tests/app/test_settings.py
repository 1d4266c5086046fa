"""Settings: one name in three places, and errors that say which one is wrong."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from app.assembly.main import (
    _model_id,
    connection_bounds,
    engine_config,
    service_bounds,
    service_prices,
    service_webhook,
)
from app.cli.options import default_text
from app.settings import (
    Settings,
    SettingsError,
    env_name,
    load_settings,
    option_name,
)
from app.stores import open_stores
from app.transport.bounds import Bounds
from app.transport.connection_bounds import ConnectionBounds
from engine.config import EngineConfig
from tenants.errors import TooLargeToStore
from tenants.limits.limiter import LimitExceeded
from tenants.records import DEFAULTED, TenantLimits
from tenants.usage.prices import FREE


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(env_name(field), raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)


def test_a_setting_has_one_name_everywhere() -> None:
    assert option_name("step_token_budget") == "--step-token-budget"
    assert env_name("step_token_budget") == "PARTYWALL_STEP_TOKEN_BUDGET"


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTYWALL_BLOCK_SIZE", "32")
    assert load_settings().block_size == 32
    assert load_settings(block_size="8").block_size == 8


def test_memory_is_given_the_way_people_write_it() -> None:
    assert load_settings(kv_memory="1GiB").kv_memory == 2**30
    assert load_settings(kv_memory="500MB").kv_memory == 500_000_000
    assert load_settings(kv_memory="auto").kv_memory is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", "70000"),
        ("admin_port", "70000"),
        ("trusted_proxies", "nobody"),
        ("max_header_bytes", "10"),
        ("device", "tpu"),
        ("kv_memory", "much"),
        ("block_size", "0"),
        ("threads", "-1"),
        ("tensor_parallel", "0"),
        ("send_deadline_seconds", "0"),
        ("resume_grace_seconds", "-1"),
        ("audit_max_entries", "0"),
        ("fairness", "luck"),
        ("recovery", "luck"),
        ("host_memory", "much"),
        ("min_run_tokens", "0"),
        ("prompt_token_price", "0"),
        ("cached_token_price", "-0.1"),
        ("output_token_price", "inf"),
        ("prefix_cache", "perhaps"),
        ("eviction", "random"),
        ("quantize", "int2"),
        ("speculation", "always"),
        ("token_cadence_ms", "-1"),
        ("kv_dtype", "int2"),
        ("prefix_grouping", "perhaps"),
        ("batch_invariant", "perhaps"),
    ],
)
def test_an_error_names_the_option_and_the_variable(field: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(**{field: value})
    assert option_name(field) in str(caught.value)
    assert env_name(field) in str(caught.value)


def test_several_processes_keep_no_blocks_on_disk() -> None:
    with pytest.raises(SettingsError, match="kept_disk must be 0 with tensor_parallel"):
        load_settings(tensor_parallel=2)
    assert load_settings(tensor_parallel=2, kept_disk="0").tensor_parallel == 2


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="ssl_certfile and ssl_keyfile go together"):
        load_settings(ssl_certfile=__file__)


def test_a_draft_model_goes_with_the_speculation_that_asks_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="draft_model goes with speculation draft"):
        load_settings(draft_model="small")
    with pytest.raises(SettingsError, match="draft_model goes with speculation draft"):
        load_settings(speculation="draft")
    settings = load_settings(speculation="draft", draft_model="small")
    config = engine_config(settings, Path("/model"), Path("/small"))
    assert (config.speculation, config.draft_model_path) == ("draft", "/small")
    with pytest.raises(ValueError, match="draft_model_path: goes with speculation draft"):
        EngineConfig(model_path="/model", draft_model_path="/small")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="admin_token_file: there is no file /nowhere"):
        load_settings(admin_token_file="/nowhere")


def test_the_password_of_the_store_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "redis_password"
    secret.write_text("p/w@rd\n")
    given = {"redis_password_file": str(secret)}
    assert load_settings(redis_url="redis://host:1/2").store_url == "redis://host:1/2"
    assert load_settings(redis_url="redis://host:1/2", **given).store_url == (
        "redis://:p%2Fw%40rd@host:1/2"
    )
    assert load_settings(redis_url="rediss://me@host", **given).store_url == (
        "rediss://me:p%2Fw%40rd@host"
    )
    with pytest.raises(SettingsError, match="redis_password_file goes with redis_url"):
        load_settings(**given)
    with pytest.raises(SettingsError, match="redis_url has a password"):
        load_settings(redis_url="redis://:one@host", **given)


NOBODY = 65534
GIVEN_FILES = [
    "admin_token_file",
    "metrics_token_file",
    "pepper_file",
    "redis_password_file",
    "other_pepper_files",
]


@pytest.mark.parametrize("field", GIVEN_FILES)
def test_a_secret_that_is_empty_is_refused_by_its_file(field: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(SettingsError, match=f"{field}: {tmp_path}/secret is empty"):
        load_settings(**{field: str(tmp_path / "secret")})


@pytest.mark.parametrize("field", GIVEN_FILES)
def test_a_secret_that_may_not_be_read_is_refused_with_the_rights_it_needs(
    field: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("it is one")
    (tmp_path / "secret").chmod(0)
    with as_nobody(), pytest.raises(SettingsError, match=f"{field}: user .*/secret.*0600.*0644"):
        load_settings(**{field: str(tmp_path / "secret")})


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_step_must_hold_every_running_request() -> None:
    with pytest.raises(SettingsError, match="step_token_budget"):
        load_settings(step_token_budget=8, max_running_requests=16)


def test_swapping_needs_somewhere_to_swap_to() -> None:
    assert load_settings(recovery="swap", host_memory="1GiB").recovery == "swap"
    with pytest.raises(SettingsError, match="swap needs host_memory"):
        load_settings(recovery="swap")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_only_loopback_counts_as_private(host: str, expected: bool) -> None:
    assert load_settings(host=host).is_loopback is expected
    assert load_settings(admin_host=host).exposed_hosts == ([] if expected else [host])


@pytest.mark.parametrize(
    ("port", "admin_port", "expected"),
    [(8000, None, 8001), (0, None, 0), (65_535, None, 0), (8000, 9, 9), (8000, 0, 0)],
)
def test_operators_have_the_port_behind_the_tenants(
    port: int, admin_port: int | None, expected: int
) -> None:
    assert load_settings(port=port, admin_port=admin_port).resolved_admin_port == expected


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
    given = {name: index for index, name in enumerate(sorted(own), 1)}
    limits = service_bounds(load_settings(**given))
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


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("field", Settings.model_fields)
def test_the_docs_list_the_setting_with_its_default_and_meaning(field: str) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    description = Settings.model_fields[field].description
    row = f"| `{option_name(field)}` | `{default_text(field)}` | {description}"
    assert row in documented


def test_tenants_without_limits_are_bounded_unless_an_operator_says_otherwise() -> None:
    bounds = load_settings().default_limits
    protected = {name for name in DEFAULTED if getattr(bounds, name) is not None}
    assert protected == DEFAULTED
    unlimited = load_settings(**{f"default_{name}": "unlimited" for name in DEFAULTED})
    assert unlimited.default_limits == TenantLimits()


async def test_the_services_stores_hold_tenants_to_the_defaults(tmp_path: Path) -> None:
    settings = load_settings(
        data_dir=tmp_path, default_requests_per_minute=1, default_stored_bytes="1KiB"
    )
    async with open_stores(settings, owner=True) as stores:
        tenant, _ = await stores.tenants.create_tenant("acme")
        await stores.limiter.admit(tenant, "r1")
        with pytest.raises(LimitExceeded):
            await stores.limiter.admit(tenant, "r2")
        for store in (stores.responses, stores.suspended):
            with pytest.raises(TooLargeToStore):
                await store.save("acme", "resp_1", b"x" * 1024, 60)


def test_clients_call_a_local_model_by_the_last_part_of_its_path(tmp_path: Path) -> None:
    file, folder = tmp_path / "small.gguf", tmp_path / "large"
    file.touch()
    folder.mkdir()
    assert _model_id(str(file), tmp_path / "converted") == "small"
    assert _model_id(str(folder), folder) == "large"
    assert _model_id("acme/model", folder) == "acme/model"


def test_prices_are_those_of_the_served_model(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('currency = "EUR"\n[models.small]\ninput = 0.1\noutput = 0.4\n')
    settings = load_settings(price_file=file)
    assert service_prices(settings, "small").output == 400
    assert service_prices(load_settings(), "small") == FREE
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
