"""What a child's environment has of its parent's."""

from __future__ import annotations

import pytest

from engine.system.secrecy import without_secrets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PARTYWALL_ADMIN_TOKEN", "x"),
        ("PARTYWALL_REDIS_URL", "redis://host:1/0"),
        ("HF_TOKEN", "x"),
        ("hf_token", "x"),
        ("OPENAI_API_KEY", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("PGPASSWORD", "x"),
        ("RAY_AUTH_TOKEN", "x"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=x"),
        ("STORE", "rediss://user:hush@host/0"),
        ("STORE", "redis://:hush@host"),
        ("https_proxy", "http://hush@proxy"),
    ],
)
def test_a_child_is_told_no_secret(name: str, value: str) -> None:
    assert without_secrets({name: value, "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PARTYWALL_CACHE_DIR", "/weights"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("RAY_AUTH_TOKEN_PATH", "/token"),
        ("RAY_AUTH_MODE", "token"),
        ("RAY_TLS_SERVER_KEY", "/key.pem"),
        ("HF_ENDPOINT", "https://hub/@main"),
        ("KEYBOARD", "de"),
        ("PYTHONPATH", "/code"),
    ],
)
def test_a_child_is_told_all_else(name: str, value: str) -> None:
    assert without_secrets({name: value}) == {name: value}
