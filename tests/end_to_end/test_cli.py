"""The command line as a newcomer meets it: processes, files, signals, and what is printed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.end_to_end.program import STOP_SECONDS, CommandLine, Started, chat, start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Started]:
    """The first start in its data folder."""
    started = start(folder)
    yield started
    if started.process.poll() is None:
        started.stop()


@pytest.fixture(scope="module")
def partywall(folder: Path) -> CommandLine:
    return CommandLine(folder / "data")


def test_the_ready_file_is_private_and_tells_all(service: Started) -> None:
    assert service.ready_mode == 0o600
    assert set(service.ready) == {"url", "pid", "tenant", "api_key", "admin_token"}
    assert service.ready["pid"] == service.process.pid
    assert service.ready["tenant"] == "demo"
    assert httpx.get(f"{service.url}/readyz", trust_env=False).status_code == 200


def test_the_line_to_paste_chats(service: Started) -> None:
    printed = service.log.read_text()
    assert printed.count(service.ready["admin_token"]) == 1
    (line,) = [line for line in printed.splitlines() if " chat --url" in line]
    assert service.ready["api_key"] in line
    done = subprocess.run(
        f"{line} --max-output-tokens 8",
        shell=True,
        input="Hello!\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_tenant_is_made_while_the_service_runs_and_chats_at_once(
    service: Started, partywall: CommandLine
) -> None:
    created = partywall.read("tenant", "create", "acme")
    assert created["id"] == "acme"
    assert chat(service.url, created["api_key"], "Hi\n").returncode == 0
    assert {tenant["id"] for tenant in partywall.read("tenant", "list")} == {"acme", "demo"}
    assert partywall.read("tenant", "show", "acme")["id"] == "acme"
    assert "acme" in partywall("tenant", "list")
    assert created["api_key"] not in partywall("tenant", "show", "acme")


def test_a_rotated_key_chats_and_a_deleted_tenants_key_does_not(
    service: Started, partywall: CommandLine
) -> None:
    created = partywall.read("tenant", "create", "shortlived")
    rotated = partywall.read("tenant", "rotate-key", "shortlived")
    assert rotated["api_key"] != created["api_key"]
    assert chat(service.url, rotated["api_key"], "Hi\n").returncode == 0
    partywall("tenant", "delete", "shortlived", "--yes")
    refused = chat(service.url, rotated["api_key"], "Hi\n")
    assert refused.returncode == 1
    assert "401" in refused.stderr


def test_a_prompt_is_warm_when_put_returns(
    service: Started, partywall: CommandLine, folder: Path
) -> None:
    key = partywall.read("tenant", "create", "prompted")["api_key"]
    text = "You are the support desk of a small bakery in the old town. Be brief and friendly. " * 5
    file = folder / "prompt.txt"
    file.write_text(text)
    assert "warmed" in partywall("prompt", "put", "prompted", "support", "--file", str(file))
    shown = partywall.read("prompt", "show", "prompted", "support")
    assert shown["version"] == 1
    assert shown["text"] == text
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client:
        answer = client.post(
            "/v1/responses",
            headers={"authorization": f"Bearer {key}"},
            json={"prompt": {"id": "support"}, "input": "Hi", "max_output_tokens": 4},
        )
    assert answer.json()["usage"]["input_tokens_details"]["cached_tokens"] >= 64
    partywall("prompt", "put", "prompted", "support", text="Another text, from standard input.")
    assert partywall.read("prompt", "show", "prompted", "support")["version"] == 2
    assert [prompt["name"] for prompt in partywall.read("prompt", "list", "prompted")] == [
        "support"
    ]
    partywall("prompt", "delete", "prompted", "support", "--yes")
    assert partywall.read("prompt", "list", "prompted") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tenant", "show", "nobody"), "nobody"),
        (("tenant", "create", "No Such Id"), "id"),
        (("tenant", "create", "demo"), "demo"),
        (("prompt", "show", "demo", "nothing"), "nothing"),
        (("serve", "--port", "many"), "--port"),
        (("serve", "--model", "/no/such/folder"), "/no/such/folder"),
    ],
)
def test_mistakes_are_told_in_one_line(
    service: Started, partywall: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    printed = partywall(*arguments, status=1).strip()
    assert printed.splitlines()[-1].startswith("error: ")
    assert said in printed


def test_wrong_usage_has_a_status_of_its_own(partywall: CommandLine) -> None:
    assert "/nowhere" in partywall("prompt", "put", "demo", "p", "--file", "/nowhere", status=2)
    assert "--colour" in partywall("serve", "--colour", "red", status=2)


def test_a_taken_port_is_told_before_the_model_loads(
    service: Started, partywall: CommandLine
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        printed = partywall("serve", "--port", port, status=1)
    assert port in printed
    assert "loading" not in printed


def test_listing_tenants_loads_no_model_library(service: Started, folder: Path) -> None:
    code = (
        "import sys; from app.cli import main\n"
        "sys.argv = ['partywall', 'tenant', 'list']\n"
        "try: main()\n"
        "except SystemExit as exit: assert not exit.code\n"
        "assert not {'torch', 'transformers', 'numba'} & set(sys.modules)\n"
    )
    environment = os.environ | {"PARTYWALL_DATA_DIR": str(folder / "data")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


def test_stopping_ends_a_running_stream_and_leaves_a_store_that_starts_again(
    service: Started, partywall: CommandLine, folder: Path
) -> None:
    """The last test of this module: it ends the service."""
    headers = {"authorization": f"Bearer {service.ready['api_key']}"}
    with connect(
        service.url.replace("http", "ws") + "/v1/responses", additional_headers=headers, proxy=None
    ) as socket_:
        request = {"type": "response.create", "input": "Count to a thousand.", "ignore_eos": True}
        socket_.send(json.dumps(request | {"max_output_tokens": 900}))
        events: list[str] = []
        close_code = None
        while close_code is None:
            try:
                events.append(json.loads(socket_.recv(timeout=30))["type"])
            except ConnectionClosed as closed:
                close_code = closed.rcvd and closed.rcvd.code
            if len(events) == 8:
                service.process.send_signal(signal.SIGTERM)
    assert events[-1] == "response.failed"
    assert close_code == 1012
    assert service.process.wait(STOP_SECONDS) == 0
    assert "Traceback" not in service.log.read_text()

    # Without a service the commands work on the same store.
    assert "demo" in {tenant["id"] for tenant in partywall.read("tenant", "list")}
    assert "warmed" in partywall("prompt", "put", "demo", "later", "--text", "Be kind. " * 20)

    again = start(folder)
    try:
        assert again.ready["api_key"] is None
        assert again.ready["admin_token"] is None
        assert again.ready["tenant"] == "demo"
        assert "rotate-key demo" in again.log.read_text()
        assert chat(again.url, service.ready["api_key"], "Hi\n").returncode == 0
    finally:
        status = again.stop(signal.SIGINT)
    assert status == 0
    assert "Traceback" not in again.log.read_text()
