"""A part of the settings tree, and how the engine's own declarations join it."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from app.settings.kinds import AUTO, GIVEN, check_given_file
from engine.config import EngineConfig
from engine.declared import declared


class Section(BaseModel, frozen=True, defer_build=True):
    """Settings of one subject; read and checked together with all others, and not alone."""

    @model_validator(mode="after")
    def _given_files_are_there(self) -> Self:
        for name, field in type(self).model_fields.items():
            path = getattr(self, name)
            if GIVEN in field.metadata and path is not None:
                check_given_file(name, path)
        return self


def of_engine(name: str, **own: Any) -> Any:
    """A setting that is a field of `EngineConfig`: with its default, unless the service has its
    `own`, its range and its description.
    """
    field = declared(EngineConfig)[name]
    if isinstance(field.default, float):
        own["allow_inf_nan"] = False
    given = {"default": field.default, "description": field.description, **field.limits, **own}
    setting = Field(**given)
    if field.is_auto:
        setting.metadata.append(AUTO)
    return setting
