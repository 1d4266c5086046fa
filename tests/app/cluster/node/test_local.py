"""Ray on this machine alone, as a door starts it: who can reach it, what it knows, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.cluster.launch import ENVIRONMENT, LOCAL_ENVIRONMENT
from tests.app.cluster.running import PROJECT
from tests.engine.model.test_model import save_model

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]

SECRETS = {
    "PARTYWALL_SOMETHING": "hush-partywall",
    "HF_TOKEN": "hush-hub",
    "STORE_URL": "redis://:hush-store@127.0.0.1:1/0",
    "AWS_SECRET_ACCESS_KEY": "hush-cloud",
    "RAY_AUTH_TOKEN": "hush-ray",
}
DOOR = """
import asyncio, sys
from pathlib import Path
from app.cluster.door.client import ClusterEngine
from app.cluster.node.deployment import Cluster
from dataclasses import replace
from tests.app.cluster.running import wanted

async def main():
    one = replace(wanted(Path(sys.argv[1])), num_replicas=1, most_replicas=1)
    engine = ClusterEngine(Cluster(one), ready_seconds=120)
    await engine.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await engine.close()

asyncio.run(main())
"""


class Door:
    """A process with a Ray of its own, and what that has started."""

    def __init__(self, model: Path, temporary: Path) -> None:
        self.temporary = temporary
        self.process = subprocess.Popen(
            [sys.executable, "-c", DOOR, str(model)],
            env=os.environ
            | ENVIRONMENT
            | LOCAL_ENVIRONMENT
            | SECRETS
            | {"PYTHONPATH": str(PROJECT), "TMPDIR": str(temporary)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.children = [
            one
            for one in psutil.Process(self.process.pid).children(recursive=True)
            if "ray::IDLE" not in one.cmdline()  # which end when they like
        ]
        self.folder = next(temporary.glob("partywall-ray-*"))

    def named(self, part: str) -> list[psutil.Process]:
        return [one for one in self.children if part in " ".join(one.cmdline())]

    def remains(self) -> list[str]:
        """What is left of it once nothing is, or half a minute has passed."""
        for _ in range(300):
            left = [" ".join(one.cmdline()) for one in self.children if _runs(one)]
            left += map(str, self.temporary.iterdir())
            if not left:
                break
            time.sleep(0.1)
        return left


def _runs(one: psutil.Process) -> bool:
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    folder = tmp_path_factory.mktemp("model")
    save_model("llama", folder)
    return folder


@pytest.fixture(scope="module")
def door(model: Path) -> Iterator[Door]:
    # Names of Ray's sockets may have 107 bytes in all: no folder of pytest's.
    temporary = Path(tempfile.mkdtemp())
    door = Door(model, temporary)
    yield door
    door.process.kill()
    door.process.wait()
    door.remains()
    temporary.rmdir()


def test_no_process_of_rays_has_a_secret_in_its_environment(door: Door) -> None:
    token = (door.folder / "token").read_text()
    assert (door.folder / "token").stat().st_mode & 0o077 == 0
    assert len(door.named("ray")) > 5
    for one in door.children:
        environment = Path(f"/proc/{one.pid}/environ").read_text()
        assert "hush-" not in environment, one.cmdline()
        assert token not in environment + " ".join(one.cmdline())


def test_rays_processes_listen_on_loopback_but_for_a_replicas_port_that_asks_for_the_token(
    door: Door,
) -> None:
    listening = [
        (one, at.laddr)
        for one in [psutil.Process(door.process.pid), *door.children]
        for at in one.net_connections("inet")
        if at.status == psutil.CONN_LISTEN
    ]
    assert len(listening) > 5
    outside = [
        (one, at) for one, at in listening if at.ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
    ]
    assert [one.cmdline()[0] for one, _ in outside] == ["ray::ServeReplica:partywall:engine"]
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{outside[0][1].port}") as channel:
        call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_cluster_of_its_own_has_no_dashboard(door: Door) -> None:
    ports = {at.laddr.port for one in door.children for at in one.net_connections("inet")}
    assert 8265 not in ports


def test_nothing_of_ray_outlives_a_killed_door(door: Door) -> None:
    door.process.kill()
    assert door.remains() == []


def test_nothing_of_ray_outlives_a_door_that_ends(model: Path) -> None:
    temporary = Path(tempfile.mkdtemp())
    door = Door(model, temporary)
    door.process.communicate(timeout=60)
    assert door.process.returncode == 0
    assert door.remains() == []
    temporary.rmdir()


def test_a_door_takes_no_time_for_a_head_that_is_lost(model: Path) -> None:
    door = Door(model, Path(tempfile.mkdtemp()))
    [head] = door.named("gcs_server")
    head.kill()
    time.sleep(1)
    process = psutil.Process(door.process.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(4)
    taken = sum(process.cpu_times()[:2]) - before
    assert door.process.poll() is None, "it waits for the head"
    door.process.kill()
    assert taken < 2, "of four seconds"
    assert door.remains() == []
