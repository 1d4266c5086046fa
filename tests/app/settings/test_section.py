"""What is the engine's own is told in the words, and held in the range, of the engine."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from app.settings import Settings
from engine.config import EngineConfig
from engine.declared import declared

TYPES = get_type_hints(EngineConfig)
OF_ENGINE = sorted(name for name, field in declared(EngineConfig).items() if field.description)
NAMES = {"kept_seconds": "kept_interval_seconds"}


@pytest.mark.parametrize("name", OF_ENGINE)
def test_a_setting_of_the_engine_is_what_the_engine_declares(name: str) -> None:
    declaration = declared(EngineConfig)[name]
    field = Settings.model_fields[NAMES.get(name, name)]
    assert field.annotation == TYPES[name]
    assert field.description == declaration.description
    if name != "speculation":  # which a service has on
        assert field.default == declaration.default
