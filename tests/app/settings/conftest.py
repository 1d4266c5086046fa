"""Settings as if nobody had set one."""

import pytest

from app.settings import Settings, env_name


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(env_name(field), raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
