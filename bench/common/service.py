"""A service of the bench's own: started on a free port with an empty store, stopped afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.common.machine import tree_rss_mib
from bench.registry import BenchError

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 300.0
_WARM_SECONDS = 120.0
_STOP_SECONDS = 20.0
_STORE_SECONDS = 30.0


@dataclass(frozen=True)
class Service:
    """A running service."""

    url: str
    admin_url: str
    pid: int
    admin_token: str
    ready_seconds: float

    def rss_mib(self) -> float:
        """Resident memory of all its processes."""
        return tree_rss_mib(self.pid)

    def descriptors(self) -> int:
        """The open ones of the service process, without its connections to the store.

        Their pool grows to a fixed size as work asks for it: not by what is left behind.
        """
        process = psutil.Process(self.pid)
        to_store = [one for one in process.net_connections("unix") if not one.laddr]
        return process.num_fds() - len(to_store)

    def create_tenant(self, name: str, system_prompt: str | None = None) -> str:
        """A tenant, its registered system prompt warm if it has one; returns its API key."""
        with self._admin() as admin:
            api_key = _create(admin, name)
            if system_prompt is None:
                return api_key
            prompt = f"/admin/tenants/{name}/prompts/bench"
            admin.put(prompt, json={"text": system_prompt}).raise_for_status()
            deadline = time.monotonic() + _WARM_SECONDS
            while admin.get(prompt).raise_for_status().json()["warmed_at"] is None:
                if time.monotonic() > deadline:
                    raise BenchError(f"the prompt of {name} was not warm after {_WARM_SECONDS} s")
                time.sleep(0.05)
            return api_key

    def put_adapter(
        self, tenant: str, name: str, config: bytes, weights: bytes, *, pinned: bool = False
    ) -> None:
        """Give a tenant an adapter, PEFT's two files."""
        files = {"adapter_config.json": config, "adapter_model.safetensors": weights}
        with self._admin() as admin:
            path = f"/admin/tenants/{tenant}/adapters/{name}"
            admin.put(path, files=files).raise_for_status()
            if pinned:
                admin.post(f"{path}/pin").raise_for_status()

    def operator(self) -> httpx.AsyncClient:
        """A client that may ask `/admin`."""
        return httpx.AsyncClient(**self._operator)

    def client(self, api_key: str, timeout: float) -> httpx.Client:
        """One that asks with a tenant's key, and sends JSON."""
        headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    def metrics(self) -> dict[str, float]:
        """The service's metrics by name and labels."""
        with self._admin() as admin:
            lines = admin.get("/metrics").raise_for_status().text.splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def held(self) -> dict[str, float]:
        """Blocks, tasks of the event loop and open descriptors that the service has right now."""
        found = self.metrics()
        return {
            "blocks": found['partywall_kv_blocks{state="in_use"}'],
            "tasks": found["partywall_asyncio_tasks"],
            "descriptors": float(self.descriptors()),
        }

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Return once the engine has no request. Raises `BenchError` if it keeps some."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.metrics()
            if not sum(found[f"partywall_num_requests_{how}"] for how in ("running", "waiting")):
                return
            if time.monotonic() > deadline:
                raise BenchError(f"the engine is not idle after {seconds:.0f} s")
            time.sleep(0.05)

    def _admin(self) -> httpx.Client:
        return httpx.Client(**self._operator)

    @property
    def _operator(self) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.admin_token}"}
        return {"base_url": self.admin_url, "headers": headers, "timeout": 30, "trust_env": False}


def _create(admin: httpx.Client, name: str) -> str:
    """The API key of a new tenant. Its store may be slow for a moment on a busy machine."""
    deadline = time.monotonic() + _STORE_SECONDS
    while True:
        again = {"idempotency-key": f"create-{name}"}  # if only the answer was late
        answer = admin.post("/admin/tenants", json={"id": name}, headers=again)
        if answer.status_code != 503 or time.monotonic() > deadline:
            return str(answer.raise_for_status().json()["api_key"])
        time.sleep(0.5)


def served_model(url: str, api_key: str) -> str:
    """The id of the model that a server of the OpenAI API serves."""
    headers = {"authorization": f"Bearer {api_key}"}
    answer = httpx.get(f"{url}/v1/models", headers=headers, trust_env=False).raise_for_status()
    return str(answer.json()["data"][0]["id"])


@contextmanager
def running_service(options: Sequence[str], program: str = "app.cli") -> Iterator[Service]:
    """Start `partywall serve` from this source tree with `options`; stop it at the end.

    `program` is the module whose command line that is. Raises `BenchError` if it does not become
    ready.
    """
    with tempfile.TemporaryDirectory(prefix="partywall-bench-") as folder:
        log = Path(folder, "log")
        ready = Path(folder, "ready.json")
        command = [sys.executable, "-m", program, "serve", "--port", "0", "--no-demo-tenant"]
        # One tenant may be a whole load here. Counted it is all the same, as in every service.
        for name in (
            "requests-per-minute",
            "concurrent-streams",
            "sockets",
            "queued-requests",
            "adapters",
            "adapter-bytes",
        ):
            command += [f"--default-{name}", "1000000000000"]
        command += ["--data-dir", str(Path(folder, "data")), "--ready-file", str(ready)]
        command += ["--core-dumps", *options]  # or nobody but root may count its descriptors
        # Settings in the caller's environment must not change what is measured.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PARTYWALL_") or name == "PARTYWALL_CACHE_DIR"
        }
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=_ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            _wait_for(ready, process, log)
            seconds = time.monotonic() - started
            told = json.loads(ready.read_text())
            yield Service(told["url"], told["admin_url"], process.pid, told["admin_token"], seconds)
        finally:
            stop(process)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """An environment variable that processes started meanwhile inherit."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _wait_for(ready: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"the service did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.01)


def stop(process: subprocess.Popen[bytes], seconds: float = _STOP_SECONDS) -> None:
    """Ask it to end, and end it if it has not in so many seconds."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
