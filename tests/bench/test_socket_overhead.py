"""The service's own cost: the null engine behind it, and clients that only count frames."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from websockets.frames import Frame, Opcode

from bench import __main__ as cli
from bench.registry import BenchError
from bench.service import socket_overhead
from bench.service.frame_reader import Streaming
from bench.service.socket_overhead import undisturbed


@pytest.mark.exhaustive
def test_every_delta_is_traced_from_the_engine_to_its_client(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["socket-overhead", "--model", str(model), "--json", str(out)]
    given += ["--streams", "4", "--seconds", "0.3", "--rounds", "1", "--first-rate", "100"]
    given += ["--last-rate", "100"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    monkeypatch.setattr("bench.service.socket_overhead._FALLEN_BEHIND_SECONDS", 10.0)
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == socket_overhead.FIGURES.keys()
    assert 0 < found["added_ms_p50"] <= found["added_ms_p99"]
    assert 0 < found["shared_ms_p50"] <= found["shared_ms_p99"]
    assert found["clients_late_ms_p99"] > 0
    assert found["deltas_per_s_per_core"] > 0
    assert found["latency_deltas_per_s"] == pytest.approx(100, rel=0.3)


def test_cores_are_kept_free_for_a_while_or_it_is_said_that_they_are_not() -> None:
    child = subprocess.Popen(["sleep", "60"])
    everyone = (os.getpid(), child.pid)
    try:
        with undisturbed(os.getpid()) as is_undisturbed:
            policy = os.SCHED_RR if is_undisturbed else os.SCHED_OTHER
            assert [os.sched_getscheduler(one) for one in everyone] == [policy, policy]
        assert {os.sched_getscheduler(one) for one in everyone} == {os.SCHED_OTHER}
    finally:
        child.kill()
        child.wait()


def frame(payload: dict[str, object]) -> bytes:
    return Frame(Opcode.TEXT, json.dumps(payload, separators=(",", ":")).encode()).serialize(
        mask=False
    )


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_are_counted_however_they_are_cut(size: int) -> None:
    created = {"type": "response.created", "response": {"id": "resp_1", "text": "x" * 70_000}}
    delta = {"type": "response.output_text.delta", "delta": "x" * 200}
    short = {"type": "response.output_text.delta", "delta": "x"}
    data = b"".join(map(frame, (created, delta, short, {"type": "response.completed"})))
    with socket.socket() as unused:
        stream = Streaming(unused)
        for start in range(0, len(data), size):
            stream.take(data[start : start + size], float(start))
    assert stream.response_id == "resp_1"
    assert len(stream.arrivals) == 2
    assert stream.ended


def test_an_answer_that_fails_ends_the_bench() -> None:
    with socket.socket() as unused, pytest.raises(BenchError, match="overloaded"):
        Streaming(unused).take(frame({"type": "error", "error": "overloaded"}), 0.0)
