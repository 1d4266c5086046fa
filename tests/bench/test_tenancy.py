"""The benches of what tenants may do to each other: small runs against a real service."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.common.load import Phase, Sent
from bench.registry import BenchError
from bench.service import sockets
from bench.tenants import fairness, isolation
from tests.bench.test_load import arrival


def figures(
    name: str, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> dict[str, float]:
    out = folder / "figures.json"
    given = [name, "--model", str(model), "--kv-memory", "32MiB", "--json", str(out), *options]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert all(math.isfinite(value) for value in found.values())
    return found


def test_isolation_sees_a_tenants_own_prompts_and_no_neighbours(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--samples", "12", "--batch", "6", "--prompt-words", "100"]
    found = figures("isolation", model, tmp_path, monkeypatch, *options)
    assert found.keys() == isolation.FIGURES.keys()
    assert found["cached_tokens_neighbour"] == 0
    assert found["cached_tokens_own"] >= 12 * 96
    assert 0 <= found["ks_p_neighbour"] <= 1


@pytest.mark.exhaustive
def test_the_product_tells_a_tenant_its_own_and_no_neighbours(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ["usage", "errors", "ids", "adapter_names"]  # those that depend on no time alone
    options = ["--samples", "20", "--channel", *told, "--plots", str(tmp_path), "--adapters", "3"]
    found = figures("audit", model, tmp_path, monkeypatch, *options)
    assert found["p_min_neighbour"] <= min(found[f"p_neighbour_{channel}"] for channel in told)
    assert found["p_max_control"] < 0.01
    assert found["p_neighbour_usage"] == 1
    assert (tmp_path / "audit-partywall.svg").exists()


@pytest.mark.exhaustive
def test_sockets_come_and_go_and_nothing_stays(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--sockets", "40", "--streams", "8", "--clients", "20", "--churn-seconds", "1"]
    found = figures("sockets", model, tmp_path, monkeypatch, *options)
    assert found.keys() == sockets.FIGURES.keys()
    assert found["errors"] == 0
    assert found["clients_vanished"] > 0
    assert found["delivery_ms_p99"] >= found["delivery_ms_p50"] > 0
    assert found["leaked_blocks"] == found["leaked_tasks"] == found["leaked_fds"] == 0


@pytest.mark.exhaustive
def test_fairness_loads_both_policies(
    slow_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--rounds", "1", "--seconds", "2", "--grace-seconds", "1"]
    options += ["--calibration-seconds", "4", "--backlog-seconds", "4"]
    # Few slots and long answers: what is slow must be the engine, and not the clients.
    options += ["--max-running-requests", "2", "--prompt-words", "16", "--output-tokens", "64"]
    found = figures("fairness", slow_model, tmp_path, monkeypatch, *options)
    assert found.keys() == fairness.FIGURES.keys()
    assert found["errors"] == 0
    for load in ("alone", "vtc", "fcfs"):
        assert found[f"ttft_ms_p99_{load}"] > found[f"itl_ms_p50_{load}"] > 0
    for name in ("ttft_{}p99_{}", "itl_{}p50_{}"):
        beside, alone = (found[name.format("ms_", load)] for load in ("vtc", "alone"))
        assert found[name.format("", "vtc_over_alone")] == pytest.approx(beside / alone)
    assert 0 < found["max_service_gap_over_bound"] <= 1


def sample(both_wait: bool, ahead: float, tokens_held: int = 10) -> fairness._Sample:
    return fairness._Sample(both_wait, ahead, tokens_held)


def phase() -> Phase:
    sent = Sent(arrival(0.0))
    sent.timing.prompt_tokens = 50
    return Phase([sent], 0.0, 1.0)


def test_the_gap_is_the_greatest_over_every_interval_in_which_both_waited() -> None:
    samples = [
        sample(False, 1000.0, 30),
        *(sample(True, ahead) for ahead in (5.0, 40.0, -20.0, 0.0)),
        sample(False, -500.0),
        *(sample(True, ahead) for ahead in (700.0, 710.0)),
    ]
    found = fairness._divergence(samples, phase())
    assert found.greatest_gap == 60
    assert found.bound == 2 * max(1.0 * 50, 2.0 * 30)


def test_tenants_that_hardly_waited_are_an_error() -> None:
    with pytest.raises(BenchError, match="not backlogged for long"):
        fairness._divergence([sample(True, 1.0), sample(False, 2.0)], phase())
