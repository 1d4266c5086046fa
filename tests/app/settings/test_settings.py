"""Settings: one name in three places, and errors that say which one is wrong."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.assembly.parts import (
    engine_config,
)
from app.settings import (
    Settings,
    SettingsError,
    env_name,
    load_settings,
    option_name,
)
from app.settings.text import default_text
from app.stores import open_stores
from engine.config import EngineConfig
from tenants.errors import TooLargeToStore
from tenants.limits.limiter import LimitExceeded
from tenants.records import DEFAULTED, TenantLimits


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


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("field", Settings.model_fields)
def test_the_docs_list_the_setting_with_its_default_and_meaning(field: str) -> None:
    documented = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
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
        await stores.limiter.admit_all(tenant, ["r1"])
        with pytest.raises(LimitExceeded):
            await stores.limiter.admit_all(tenant, ["r2"])
        for store in (stores.responses, stores.suspended):
            with pytest.raises(TooLargeToStore):
                await store.save("acme", "resp_1", b"x" * 1024, 60)
