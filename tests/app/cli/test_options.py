"""The options of `partywall serve` are the settings, no more and no fewer."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from app.cli.options import settings_command
from app.settings import Settings, env_name, option_name


class Command:
    """A command with every setting for an option; it notes what it was given."""

    def __init__(self, fields: list[str] | None = None) -> None:
        self.given: dict[str, Any] | None = None
        self.app = typer.Typer(rich_markup_mode=None)

        @settings_command(fields)
        def note(**given: Any) -> None:
            self.given = given

        self.app.command()(note)

    def run(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(self.app, arguments)
        return result.exit_code, result.output


@pytest.fixture(scope="module")
def help_text() -> str:
    status, text = Command().run("--help")
    assert status == 0
    return text


@pytest.mark.parametrize("field", Settings.model_fields)
def test_help_tells_of_every_setting(help_text: str, field: str) -> None:
    assert option_name(field) in help_text
    assert env_name(field) in help_text


def test_only_what_was_given_is_passed_on_and_unchecked() -> None:
    command = Command()
    assert command.run("--port", "many", "--no-prefix-cache", "--insecure")[0] == 0
    assert command.given == {"port": "many", "prefix_cache": False, "insecure": True}


def test_an_unknown_option_is_a_usage_error() -> None:
    command = Command()
    assert command.run("--colour", "red")[0] == 2
    assert command.given is None


def test_a_command_may_take_a_few_settings_only() -> None:
    command = Command(["redis_url", "data_dir"])
    assert command.run("--data-dir", "/x")[0] == 0
    assert command.given == {"data_dir": "/x"}
    assert command.run("--port", "1")[0] == 2
