"""A pinned prompt is found again after the whole service was killed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.program import CommandLine, Started, start

pytestmark = pytest.mark.exhaustive
TEXT = " ".join(f"Rule {number}: be brief about everything." for number in range(120))
OPTIONS = ("--kept-interval-seconds", "0.2")


def admin(service: Started, token: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=service.admin_url, headers=headers, timeout=60)


def metric(service: Started, token: str, name: str) -> float:
    with admin(service, token) as client:
        lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def wait_for_kept(service: Started, token: str) -> None:
    """Return once no more files come."""
    deadline, last = time.monotonic() + 120, -1.0
    while time.monotonic() < deadline:
        kept = metric(service, token, "partywall_kept_bytes")
        if kept and kept == last:
            return
        last = kept
        time.sleep(0.6)
    raise AssertionError("nothing is kept")


def cached_tokens(service: Started, api_key: str) -> int:
    answer = httpx.post(
        f"{service.url}/v1/responses",
        headers={"authorization": f"Bearer {api_key}"},
        json={"input": "Hello", "max_output_tokens": 4, "prompt": {"id": "rules"}},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["input_tokens_details"]["cached_tokens"])


def test_a_pinned_prompt_survives_kill_9_and_a_deleted_tenant_does_not(tmp_path: Path) -> None:
    service = start(tmp_path, *OPTIONS)
    token = str(service.ready["admin_token"])
    keys = {}
    try:
        with admin(service, token) as client:
            for name in ("acme", "umbra"):
                keys[name] = client.post("/admin/tenants", json={"id": name}).json()["api_key"]
                path = f"/admin/tenants/{name}/prompts/rules"
                client.put(path, json={"text": TEXT}).raise_for_status()
                client.post(f"{path}/pin").raise_for_status()
                client.post(f"{path}/warm").raise_for_status()
        wait_for_kept(service, token)
    finally:
        service.stop(signal.SIGKILL)
    folder = tmp_path / "data" / "kept"
    assert len([child for child in folder.iterdir() if child.is_dir()]) == 2
    CommandLine(tmp_path / "data")("tenant", "delete", "umbra", "--yes")

    service = start(tmp_path, *OPTIONS)
    try:
        assert cached_tokens(service, keys["acme"]) > 1000
        assert metric(service, token, "partywall_engine_restored_blocks_total") > 60
        deadline = time.monotonic() + 60
        while len([child for child in folder.iterdir() if child.is_dir()]) > 1:
            assert time.monotonic() < deadline, "the deleted tenant's files are still there"
            time.sleep(0.1)
        assert "Traceback" not in service.log.read_text()
    finally:
        service.stop()
