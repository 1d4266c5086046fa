"""`partywall doctor` as it is called: a line for each part, and a status for scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.program import app


def run(*arguments: str, folder: Path, **variables: str) -> tuple[int, str]:
    options = ["--cache-dir", str(folder), "--data-dir", str(folder), "--port", "0"]
    options += ["--admin-port", "0", *arguments]
    result = CliRunner(env={"COLUMNS": "80"} | variables).invoke(app, ["doctor", *options])
    return result.exit_code, result.output


def test_it_tells_of_each_part_within_80_columns_and_changes_nothing(tmp_path: Path) -> None:
    status, text = run(folder=tmp_path)
    assert status == 0
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    parts = {re.split(" {2,}", line)[1] for line in lines if line.startswith("ok ")}
    assert {"kernels", "memory", "weights", "data dir", "store", "port", "clock"} <= parts
    assert list(tmp_path.iterdir()) == []


def test_json_has_the_checks_and_the_machine(tmp_path: Path) -> None:
    document = json.loads(run("--json", folder=tmp_path)[1])
    (weights,) = [check for check in document["checks"] if check["part"] == "weights"]
    assert (weights["grade"], weights["remedy"]) == ("ok", "")
    assert document["machine"]["is_choice_kept"] is False
    assert document["machine"]["choice"]["threads"] >= 1


def test_it_takes_the_options_and_variables_of_serve(tmp_path: Path) -> None:
    draft = {"PARTYWALL_SPECULATION": "draft", "PARTYWALL_DRAFT_MODEL": str(tmp_path / "small")}
    status, text = run("--kept-disk", "0", folder=tmp_path, **draft)
    assert status == 1
    assert "fail  draft weights" in text
    assert "kept blocks" not in text


def test_it_fails_where_redis_does_not_answer(tmp_path: Path) -> None:
    status, text = run("--redis-url", "redis://:secret@127.0.0.1:1", folder=tmp_path)
    assert status == 1
    told = " ".join(text.split())
    assert "no Redis at redis://***@127.0.0.1:1" in told
    assert "-> start it there, or correct redis_url" in told
    assert "a service would not start: 1 to mend" in told
    assert "secret" not in text


def test_prices_that_cannot_be_read_fail(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("{")
    status, text = run("--price-file", str(prices), folder=tmp_path)
    assert status == 1
    assert "price_file" in text


@pytest.mark.parametrize("name", ["pepper", "admin-token.sha256"])
def test_secrets_that_a_start_could_not_read_fail(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("junk")
    status, text = run("--json", folder=tmp_path)
    assert status == 1
    (check,) = [check for check in json.loads(text)["checks"] if check["grade"] == "fail"]
    assert check["part"] == "secrets"
    assert name in check["what"]
