"""Settings: one name in three places, and errors that say which one is wrong."""

from pathlib import Path

import pytest

from app.settings import (
    Settings,
    SettingsError,
    default_text,
    env_name,
    load_settings,
    option_name,
)


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
        ("device", "tpu"),
        ("kv_memory", "much"),
        ("block_size", "0"),
        ("threads", "-1"),
        ("send_deadline_seconds", "0"),
        ("prefix_cache", "perhaps"),
    ],
)
def test_an_error_names_the_option_and_the_variable(field: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(**{field: value})
    assert option_name(field) in str(caught.value)
    assert env_name(field) in str(caught.value)


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="ssl_certfile and ssl_keyfile go together"):
        load_settings(ssl_certfile=__file__)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="admin_token_file: there is no file /nowhere"):
        load_settings(admin_token_file="/nowhere")


def test_a_step_must_hold_every_running_request() -> None:
    with pytest.raises(SettingsError, match="step_token_budget"):
        load_settings(step_token_budget=8, max_running_requests=16)


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


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("field", Settings.model_fields)
def test_the_readme_lists_the_setting_with_its_default_and_meaning(field: str) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    description = Settings.model_fields[field].description
    row = f"| `{option_name(field)}` | `{default_text(field)}` | {description}"
    assert row in readme
