"""The docs, followed word by word by a new user (on another port, with a store of its own)."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.program import PROGRAM, Started, start

PROJECT = Path(__file__).parents[2]
README = "README.md"
OPERATING = "docs/operating.md"
DOCUMENTED_URL = "http://127.0.0.1:8000"
ADMIN_URL = "http://127.0.0.1:8001"


def blocks(document: str, language: str) -> list[str]:
    text = (PROJECT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Started]:
    started = start(folder, "--default-max-output-tokens", "40")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def environment(service: Started, folder: Path) -> dict[str, str]:
    return os.environ | {
        "PARTYWALL_URL": service.url,
        "PARTYWALL_API_KEY": service.ready["api_key"],
        "PARTYWALL_DATA_DIR": str(folder / "data"),
    }


def run(command: list[str], environment: dict[str, str], stdin: str = "") -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_works_in_the_order_it_is_told(
    service: Started, environment: dict[str, str]
) -> None:
    program = f'partywall() {{ {shlex.join(PROGRAM)} "$@"; }}\n'
    script = "\n".join(blocks(README, "sh")).replace(".venv/bin/partywall", "partywall")
    lines = [line for line in script.splitlines() if "partywall " in line and "git" not in line]
    assert len(lines) >= 6
    api_key = service.ready["api_key"]
    for line in lines:
        command = line.replace(DOCUMENTED_URL, service.url).replace("pw_...", api_key)
        printed = run(["bash", "-c", program + command], environment)
        if "tenant create acme" in line:
            api_key = printed.split()[-1]
        elif line.startswith("echo"):
            assert printed.strip()
        elif "prompt put" in line:
            assert "warmed" in printed


def test_the_operators_request_is_answered(service: Started, environment: dict[str, str]) -> None:
    *_, block = blocks(OPERATING, "sh")  # those before it are for secrets of one's own
    (line,) = block.splitlines()
    url, header = shlex.split(line)[-1], shlex.split(line)[2]
    name, _, value = header.partition(": ")
    answer = httpx.get(
        url.replace(ADMIN_URL, service.admin_url),
        headers={name: value.replace("pwadmin_...", service.ready["admin_token"])},
        trust_env=False,
    )
    assert "demo" in [tenant["id"] for tenant in answer.json()["tenants"]]


def test_the_operators_chapter_works_from_its_first_command_to_its_last(
    service: Started, environment: dict[str, str]
) -> None:
    script = "\n".join(blocks(OPERATING, "bash")).replace(ADMIN_URL, service.admin_url)
    script = script.replace("pwadmin_...", service.ready["admin_token"])
    printed = run(["bash", "-euo", "pipefail", "-c", script], environment)
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert answers[0]["id"] == "globex"
    assert answers[0]["api_key"].startswith("pw_")
    assert answers[1]["limits"]["requests_per_minute"] == 600
    assert any(answer.get("warmed_at") for answer in answers)
    assert "day,requests,prompt_tokens" in printed
    gone = httpx.get(
        f"{service.admin_url}/admin/tenants/globex",
        headers={"authorization": f"Bearer {service.ready['admin_token']}"},
        trust_env=False,
    )
    assert gone.status_code == 404


@pytest.mark.parametrize("code", blocks(README, "python"))
def test_the_openai_example_runs(code: str, service: Started, environment: dict[str, str]) -> None:
    assert DOCUMENTED_URL in code
    code = code.replace(DOCUMENTED_URL, service.url).replace("pw_...", service.ready["api_key"])
    assert len(run([sys.executable, "-c", code], environment).split()) > 5
