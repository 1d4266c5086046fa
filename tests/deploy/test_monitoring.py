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

from app.upkeep.metrics import Metrics
from tests.deploy.conftest import ROOT, Compose
from tests.engine.simulation import simulated_core

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """The names of all samples that a service has told."""
    metrics = Metrics()
    metrics.engine.observe(simulated_core().stats())
    metrics.count_answer("acme", 5, 2, 3, "stop")
    metrics.count_prompt("acme/law", 5, 2)
    metrics.count_refused("responses", 400)
    metrics.limited.labels("requests").inc()
    metrics.loop_failures.labels("warming").inc()
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


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
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'partywall_engine_up{{instance="a"}}'
        values: '1 1 0 0 0 0'
      - series: 'partywall_requests_total{{instance="a",route="responses",outcome="completed"}}'
        values: '0+90x30'
      - series: 'partywall_requests_total{{instance="a",route="responses",outcome="503"}}'
        values: '0+10x30'
    alert_rule_test:
      - {{eval_time: 1m, alertname: PartywallEngineDown, exp_alerts: []}}
      - eval_time: 4m
        alertname: PartywallEngineDown
        exp_alerts:
          - exp_labels: {{severity: critical, instance: a}}
            exp_annotations: {{summary: "The engine of a does not answer: see its log"}}
      - eval_time: 20m
        alertname: PartywallRequestsFail
        exp_alerts:
          - exp_labels: {{severity: critical, instance: a}}
            exp_annotations: {{summary: "10% of the requests at a fail"}}
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
    metrics.count_answer("acme", 5, 2, 3, "stop")
    text, _ = metrics.render("")  # in a loop, as the service does
    checked = await asyncio.create_subprocess_exec(
        promtool, "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await checked.communicate(text)
    assert checked.returncode == 0, said.decode()


def test_alerts_fire_when_they_should(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "test.yml").write_text(ALERTS.format(rules=PROMETHEUS / "alerts.yml"))
    tested = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "test.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
