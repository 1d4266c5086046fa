"""Every setting of the service: one typed tree, a file a subject."""

from app.settings.tree import (
    ENV_PREFIX,
    Settings,
    SettingsError,
    env_name,
    load_settings,
    option_name,
)

__all__ = [
    "ENV_PREFIX",
    "Settings",
    "SettingsError",
    "env_name",
    "load_settings",
    "option_name",
]
