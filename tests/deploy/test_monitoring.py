"""What Prometheus and Grafana are given: metrics that there are, in files that tools accept."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from app.observe.metrics import Metrics
from engine.client import ROUTED_BY, FleetFigures, ReplicaFigures
from tests.deploy.conftest import ROOT, Compose
from tests.engine.simulation import simulated_core

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
FLEET = FleetFigures(
    replicas=[
        ReplicaFigures(
            name="a1",
            stats=simulated_core().stats(),
            is_up=True,
            engine_restarts=0,
            index_lag_seconds=0.0,
            events_lost=0,
        )
    ],
    num_wanted=1,
    routed=dict.fromkeys(ROUTED_BY, 0),
    index_blocks=0,
    streams_moved=0,
)


def told_metrics() -> Metrics:
    """Those of a service that has told all that it may."""
    metrics = Metrics()
    said = simulated_core().stats()
    metrics.engine.observe(structs.replace(said, num_experts=8, expert_imbalance=1.5))
    metrics.fleet.observe(FLEET)
    metrics.traffic.count_answer("acme", 5, 2, 3, "stop")
    metrics.traffic.count_prompt("acme/law", 5, 2)
    metrics.traffic.count_adapter("acme", "support", 1, 5, 2, 3)
    metrics.count_refused("responses", 400)
    metrics.limited.labels("requests").inc()
    metrics.loop_failures.labels("warming").inc()
    return metrics


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """The names of all samples that a service has told."""
    families = told_metrics().registry.collect()
    return {sample.name for family in families for sample in family.samples}


def expressions() -> Iterator[str]:
    dashboard: Any = json.loads((GRAFANA / "partywall.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["query"]
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def test_everything_that_is_asked_for_is_exported(exported: set[str]) -> None:
    asked = {name for one in expressions() for name in re.findall(r"partywall_\w+", one)}
    assert len(asked) > 20
    assert asked - exported == set()


def test_prometheus_scrapes_with_the_token_that_the_service_is_given(compose: Compose) -> None:
    asked = compose("--profile", "metrics", "--profile", "cpu", "config")
    services = yaml.safe_load(asked.stdout)["services"]
    (scrape,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    secret = scrape["authorization"]["credentials_file"]
    assert services["partywall"]["environment"]["PARTYWALL_METRICS_TOKEN_FILE"] == secret
    for name in ("partywall", "prometheus"):
        given = {f"/run/secrets/{one['source']}" for one in services[name]["secrets"]}
        assert secret in given


def test_panels_do_not_overlap_and_have_titles_of_their_own() -> None:
    panels = json.loads((GRAFANA / "partywall.json").read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["title"] for panel in panels}) == len(panels)


def test_compose_runs_both_beside_any_profile(compose: Compose) -> None:
    asked = compose("--profile", "metrics", "--profile", "cpu", "config", "--services")
    assert {"prometheus", "grafana", "partywall"} <= set(asked.stdout.split())
    config = yaml.safe_load(compose("--profile", "metrics", "config").stdout)["services"]
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r".+:v?\d+\.\d+\.\d+", config[name]["image"])
        for volume in config[name]["volumes"]:
            assert volume["type"] == "volume" or Path(volume["source"]).exists()
        assert all(one["host_ip"] == "127.0.0.1" for one in config[name].get("ports", ()))


ALERTS = """
- interval: 1m
  input_series:
    - series: 'partywall_engine_up{instance="a"}'
      values: '1 1 0 0 0 0'
    - series: 'partywall_requests_total{instance="a",route="responses",outcome="completed"}'
      values: '0+90x30'
    - series: 'partywall_requests_total{instance="a",route="responses",outcome="503"}'
      values: '0+10x30'
  alert_rule_test:
    - {eval_time: 1m, alertname: PartywallEngineDown, exp_alerts: []}
    - eval_time: 4m
      alertname: PartywallEngineDown
      exp_alerts:
        - exp_labels: {severity: critical, instance: a}
          exp_annotations: {summary: "The engine of a does not answer: see its log"}
    - eval_time: 20m
      alertname: PartywallRequestsFail
      exp_alerts:
        - exp_labels: {severity: critical, instance: a}
          exp_annotations: {summary: "10% of the requests at a fail"}
"""


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    return found


def test_promtool_accepts_the_configuration_and_the_rules(promtool: str, tmp_path: Path) -> None:
    # It looks for the secret, which a container has.
    shutil.copytree(PROMETHEUS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "metrics_token").write_text("a token")
    config = (PROMETHEUS / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(config.replace("/run/secrets", str(tmp_path)))
    checked = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules found" in checked.stdout


async def test_promtool_finds_a_scrape_in_order(promtool: str) -> None:
    metrics = Metrics()
    metrics.engine.observe(simulated_core().stats())
    metrics.fleet.observe(FLEET)
    metrics.traffic.count_answer("acme", 5, 2, 3, "stop")
    text, _ = metrics.render("")  # in a loop, as the service does
    checked = await asyncio.create_subprocess_exec(
        promtool, "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await checked.communicate(text)
    assert checked.returncode == 0, said.decode()


def test_alerts_fire_when_they_should(promtool: str, tmp_path: Path) -> None:
    tests = yaml.safe_load(ALERTS)
    run_rules(promtool, tmp_path, tests)


BAD = "r7"
SICK = {  # values of the bad one of eight replicas, and of the others; the alert, and what it says
    "PartywallReplicaDown": (
        {"up": "1 1 0x28"},
        {"up": "1x30"},
        f"The replica {BAD} does not compute: see its log",
    ),
    "PartywallReplicaRestarts": (
        {"engine_restarts_total": "0x10 1 2 3 3x17"},
        {"engine_restarts_total": "0x10 1x20"},
        f"The engine of the replica {BAD} dies again and again: see its log",
    ),
    "PartywallReplicaOverloaded": (
        {"queue_seconds": "40x30"},
        {"queue_seconds": "3x30"},
        f"The replica {BAD} has 40s of prompts before it, others do not",
    ),
    "PartywallReplicaSlow": (
        {"num_requests_running": "8x30", "generation_tokens_total": "0+600x30"},
        {"num_requests_running": "8x30", "generation_tokens_total": "0+6000x30"},
        f"Requests at the replica {BAD} get less than half as many tokens as at others",
    ),
    "PartywallReplicaBehind": (
        {"index_lag_seconds": "30x30"},
        {"index_lag_seconds": "0.01x30"},
        f"What the replica {BAD} tells of its blocks is 30s old",
    ),
    "PartywallReplicaNewsLost": (
        {"kv_events_lost_total": "0+5x30"},
        {"kv_events_lost_total": "0x30"},
        f"What the replica {BAD} tells of its blocks is lost again and again",
    ),
}


def of_replica(name: str, values: dict[str, str]) -> list[dict[str, str]]:
    """Series of it, as two doors tell them."""
    return [
        {
            "series": f'partywall_replica_{metric}{{instance="{door}",replica="{name}"}}',
            "values": one,
        }
        for door in ("d1", "d2")
        for metric, one in values.items()
    ]


def firing(name: str, labels: dict[str, str], summary: str) -> dict[str, Any]:
    """What promtool is to expect of an alert."""
    one = {"exp_labels": labels, "exp_annotations": {"summary": summary}}
    return {"eval_time": "20m", "alertname": name, "exp_alerts": [one]}


@pytest.mark.parametrize("num_others", [1, 7])
def test_one_bad_replica_is_told_by_its_name_and_once(
    promtool: str, tmp_path: Path, num_others: int
) -> None:
    tests = []
    for name, (bad, good, summary) in SICK.items():
        series = of_replica(BAD, bad)
        for number in range(num_others):
            series += of_replica(f"r{number}", good)
        expected = firing(name, {"severity": "warning", "replica": BAD}, summary)
        others = [
            {"eval_time": "20m", "alertname": other, "exp_alerts": []}
            for other in SICK.keys() - {name}
        ]
        tests.append(
            {"interval": "1m", "input_series": series, "alert_rule_test": [expected, *others]}
        )
    run_rules(promtool, tmp_path, tests)


def test_replicas_that_nobody_replaces_are_missed(promtool: str, tmp_path: Path) -> None:
    wanted = [
        {"series": f'partywall_replicas_wanted{{instance="{door}"}}', "values": f"{count}x30"}
        for door, count in {"d1": 2, "d2": 2, "d3": 1}.items()
    ]
    up = [
        {"series": f'partywall_replica_up{{instance="{door}",replica="r0"}}', "values": "1x30"}
        for door in ("d1", "d3")
    ]
    gone = {"series": 'partywall_replica_up{instance="d1",replica="r1"}', "values": "1x5"}
    name, summary = (
        "PartywallReplicasMissing",
        "Of the replicas that are wanted only {} compute, as {} has it",
    )
    alerts = [
        {
            "exp_labels": {"severity": "critical", "instance": door},
            "exp_annotations": {"summary": summary.format(count, door)},
        }
        for door, count in (("d1", 1), ("d2", 0))
    ]
    expected = {"eval_time": "20m", "alertname": name, "exp_alerts": alerts}
    test = {"interval": "1m", "input_series": [*wanted, *up, gone], "alert_rule_test": [expected]}
    run_rules(promtool, tmp_path, [test])


def run_rules(promtool: str, folder: Path, tests: list[dict[str, Any]]) -> None:
    """Have promtool play the series, and expect what they say."""
    file = folder / "test.yml"
    rules = [str(PROMETHEUS / "alerts.yml")]
    file.write_text(
        yaml.safe_dump({"rule_files": rules, "evaluation_interval": "1m", "tests": tests})
    )
    command = [promtool, "test", "rules", str(file)]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
