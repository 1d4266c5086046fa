"""The command line as a newcomer meets it: processes, files, signals, and what is printed."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
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
    started = start(folder, "--drain-seconds", "0.5")
    yield started
    if started.process.poll() is None:
        started.stop()


@pytest.fixture(scope="module")
def partywall(folder: Path) -> CommandLine:
    return CommandLine(folder / "data")


def test_the_ready_file_is_private_and_tells_all(service: Started) -> None:
    assert service.ready_mode == 0o600
    told = {"url", "admin_url", "pid", "tenant", "api_key", "api_key_command", "admin_token"}
    assert set(service.ready) == told
    assert service.ready["api_key_command"] is None  # the key itself is there
    assert service.ready["pid"] == service.process.pid
    assert service.ready["tenant"] == "demo"
    assert httpx.get(f"{service.url}/readyz", trust_env=False).status_code == 200


def test_what_is_no_terminal_is_told_where_the_secrets_are_and_a_line_that_chats(
    service: Started, folder: Path
) -> None:
    printed = service.log.read_text()
    assert str(folder / "ready.json") in printed
    for secret in ("admin_token", "api_key"):
        assert service.ready[secret] not in printed
    (line,) = [line for line in printed.splitlines() if " chat --url" in line]
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


def test_no_other_user_reads_a_file_of_the_service_and_it_leaves_no_core(
    service: Started, folder: Path
) -> None:
    files = [path for path in (folder / "data").rglob("*") if path.is_file()]
    assert {"appendonlydir", "data"} <= {path.parent.name for path in files}
    assert [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    processes = [service.process.pid, *map(_pid, psutil.Process(service.process.pid).children())]
    assert len(processes) >= 3  # the service, its engine, its store
    for pid in processes:
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)


def _pid(process: psutil.Process) -> int:
    return process.pid


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


def test_a_tenant_is_changed_and_its_next_request_knows(
    service: Started, partywall: CommandLine
) -> None:
    key = partywall.read("tenant", "create", "changed")["api_key"]
    shown = partywall.read(
        "tenant", "set", "changed", "weight=2.5", "limits.output_tokens=4", "limits.sockets=9"
    )
    assert (shown["weight"], shown["limits"]["output_tokens"]) == (2.5, 4)
    refused = chat(service.url, key, "Hi\n")
    assert "4" in refused.stderr
    lifted = partywall.read("tenant", "set", "changed", "limits.output_tokens=none")
    assert (lifted["limits"]["output_tokens"], lifted["limits"]["sockets"]) == (None, 9)
    assert chat(service.url, key, "Hi\n").returncode == 0
    assert "limits.sockets" in partywall("tenant", "show", "changed")
    partywall("tenant", "set", "changed", "status=disabled")
    assert "403" in chat(service.url, key, "Hi\n").stderr


def test_secrets_are_replaced_while_the_service_runs(
    service: Started, partywall: CommandLine
) -> None:
    created = partywall.read("tenant", "create", "sealed")
    assert chat(service.url, created["api_key"], "Hi\n").returncode == 0
    assert "store rotate" in partywall("tenant", "rotate-secret", "sealed", "--yes")
    left = partywall.read("store", "rotate")
    assert left["former_secrets"] == ["sealed"]
    assert (left["unreadable"], left["api_keys"], left["peppers"]) == ([], [], 0)
    assert "in a minute: sealed" in partywall("store", "rotate")
    assert chat(service.url, created["api_key"], "Hi\n").returncode == 0


def test_keys_are_made_listed_rotated_and_revoked(service: Started, partywall: CommandLine) -> None:
    partywall("tenant", "create", "keyed")
    made = partywall.read("key", "create", "keyed", "ci", "--expires-in-seconds", "3600")
    rotated = partywall.read("key", "rotate", "keyed", made["id"], "--overlap-seconds", "60")
    names = [key["name"] for key in partywall.read("key", "list", "keyed")]
    assert sorted(names) == ["ci", "ci", "default"]
    assert chat(service.url, made["api_key"], "Hi\n").returncode == 0
    partywall("key", "revoke", "keyed", rotated["id"], "--yes")
    assert chat(service.url, rotated["api_key"], "Hi\n").returncode == 1
    assert made["api_key"] not in partywall("key", "list", "keyed")


def test_a_group_shares_its_prompts_and_the_audit_tells_who_made_it(
    service: Started, partywall: CommandLine
) -> None:
    key = partywall.read("tenant", "create", "member")["api_key"]
    partywall("group", "create", "bakers", "--name", "Bakers of the town")
    assert "warmed" in partywall(
        "prompt", "put", "@bakers", "oven", "--text", "Talk of bread. " * 9
    )
    assert "prompt 'oven'" in chat(service.url, key, "Hi\n", "--prompt", "oven").stderr
    partywall("tenant", "set", "member", "share_group=bakers")
    assert partywall.read("group", "members", "bakers") == ["member"]
    assert chat(service.url, key, "Hi\n", "--prompt", "oven").returncode == 0
    partywall("prompt", "put", "@bakers", "oven", "--text", "Talk of cake.", "--no-activate")
    assert partywall.read("prompt", "show", "@bakers", "oven")["version"] == 1
    partywall("prompt", "activate", "@bakers", "oven", "2")
    partywall("prompt", "pin", "@bakers", "oven")
    versions = partywall.read("prompt", "versions", "@bakers", "oven")
    assert [(one["version"], one["active"], one["pinned"]) for one in versions] == [
        (2, True, True),
        (1, False, True),
    ]
    assert "member" in partywall("group", "delete", "bakers", "--yes", status=1)
    newest = partywall.read("audit-log", "--owner", "@bakers", "--limit", "1")
    assert (newest[0]["action"], newest[0]["actor"][:4]) == ("prompt.pin", "cli:")
    assert "tenant.create" in partywall("audit-log", "--owner", "member")


def test_usage_is_told_by_day_and_with_the_deletion(
    service: Started, partywall: CommandLine
) -> None:
    key = partywall.read("tenant", "create", "user")["api_key"]
    assert "used nothing" in partywall("usage", "user")
    assert chat(service.url, key, "Hi\n").returncode == 0
    deadline = time.monotonic() + 20
    while not (days := partywall.read("usage", "user")):
        assert time.monotonic() < deadline
    assert days[0]["requests"] == 1
    assert days[0]["output_tokens"] > 0
    header, line = partywall("usage", "user", "--csv").splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["day"] == days[0]["day"]
    assert partywall.read("usage", "user", "--until", "2020-01-01") == []
    assert partywall.read("tenant", "delete", "user", "--yes")["usage"] == days


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tenant", "show", "nobody"), "nobody"),
        (("tenant", "create", "No Such Id"), "id"),
        (("tenant", "create", "demo"), "demo"),
        (("prompt", "show", "demo", "nothing"), "nothing"),
        (("tenant", "set", "demo", "weight=0"), "weight"),
        (("tenant", "set", "demo", "limits.stars=5"), "limits.stars"),
        (("tenant", "set", "demo", "share_group=nobody"), "share_group"),
        (("key", "revoke", "demo", "0123456789abcdef", "--yes"), "0123456789abcdef"),
        (("group", "members", "nobody"), "nobody"),
        (("usage", "nobody"), "nobody"),
        (("serve", "--port", "many"), "--port"),
        (("serve", "--port", "0", "--model", "/no/such/folder"), "/no/such/folder"),
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
    assert "FIELD=VALUE" in partywall("tenant", "set", "demo", "weight", status=2)
    twice = partywall("tenant", "set", "demo", "weight=1", "weight=2", status=2)
    assert "given twice" in twice


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
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    environment = os.environ | {"PARTYWALL_DATA_DIR": str(folder / "data")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="the first line asks torch of the GPU")
def test_a_service_has_torch_in_its_engine_alone_and_no_compiler(service: Started) -> None:
    processes = psutil.Process(service.process.pid), *psutil.Process(service.process.pid).children()
    maps = {
        process.cmdline()[2]: Path(f"/proc/{process.pid}/maps").read_text()
        for process in processes
        if process.cmdline()[1] == "-m"
    }
    assert {name: "libtorch" in mapped for name, mapped in maps.items()} == {
        "app.cli": False,
        "engine.assembly.process": True,
    }
    assert not any("libtriton" in mapped for mapped in maps.values())


def test_stopping_interrupts_a_running_stream_and_leaves_a_store_that_starts_again(
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
    assert events[-1] == "response.incomplete"
    assert close_code == 1012
    assert service.process.wait(STOP_SECONDS) == 0
    printed = service.log.read_text()
    assert "Traceback" not in printed
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert "engine" in {line.get("process") for line in lines}
    (ended,) = (line for line in lines if line.get("finish") == "suspended")
    same = [line for line in lines if line.get("request_id") == ended["request_id"]]
    assert [line["close_code"] for line in same if line["event"] == "socket"] == [1012]

    # Without a service the commands work on the same store.
    assert "demo" in {tenant["id"] for tenant in partywall.read("tenant", "list")}
    assert "warmed" in partywall("prompt", "put", "demo", "later", "--text", "Be kind. " * 20)

    again = start(folder)
    try:
        assert again.ready["api_key"] is None
        assert again.ready["admin_token"] is None
        assert again.ready["tenant"] == "demo"
        assert "rotate-key demo" in again.log.read_text()
        assert str(folder / "data" / "admin-token.sha256") in again.log.read_text()
        assert chat(again.url, service.ready["api_key"], "Hi\n").returncode == 0
        rotate = subprocess.run(
            again.ready["api_key_command"], shell=True, capture_output=True, text=True, timeout=60
        )
        assert chat(again.url, rotate.stdout.split()[-1], "Hi\n").returncode == 0
    finally:
        status = again.stop(signal.SIGINT)
    assert status == 0
    assert "Traceback" not in again.log.read_text()
