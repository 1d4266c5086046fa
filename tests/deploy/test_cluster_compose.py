"""The compose file's profile `cluster`: what compose makes of it, and that it can be run so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from app.cluster.launch import ENVIRONMENT
from app.settings import ENV_PREFIX, load_settings
from tests.deploy.conftest import ROOT, Compose
from tests.deploy.test_compose import seconds

NODES = ["head", "worker", "door"]
CLUSTER = [*NODES, "balancer", "tables"]
SECRETS = "/run/secrets/"


def ray_options(service: dict[str, Any]) -> list[str]:
    """What `ray start` is told in a container."""
    words = " ".join(service["entrypoint"]).replace("\\\n", " ").split()
    assert words.count("ray") == 1
    begin = words.index("ray")
    assert words[begin + 1] == "start"
    options = words[begin + 2 :]
    return options[: options.index("&&")] if "&&" in options else options


def test_the_profile_runs_a_head_workers_doors_a_balancer_and_redis(
    compose: Compose, services: dict[str, Any]
) -> None:
    chosen = compose("--profile", "cluster", "config", "--services").stdout.split()
    assert set(chosen) == {*CLUSTER, "redis"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["door"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", CLUSTER)
def test_a_container_comes_back_and_can_change_nothing_but_its_volumes(
    name: str, services: dict[str, Any]
) -> None:
    service = services[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("user") == ("redis" if name == "tables" else None)  # the image's is nobody
    volumes = service.get("volumes", [])
    assert len(volumes) == (name != "tables")  # which are gone with it
    assert all(volume["type"] == "volume" or volume["read_only"] for volume in volumes)


def test_only_the_balancer_is_published_and_on_loopback_only(services: dict[str, Any]) -> None:
    published = [name for name in (*CLUSTER, "redis") if services[name].get("ports")]
    assert published == ["balancer"]
    assert [port["host_ip"] for port in services["balancer"]["ports"]] == ["127.0.0.1"] * 2
    networks = {name: set(services[name]["networks"]) for name in CLUSTER}
    assert networks["worker"] == {"ray"}
    assert networks["head"] == {"ray", "tables"}
    assert networks["tables"] == {"tables"}
    assert networks["balancer"] == {"default"}
    assert networks["door"] == {"default", "ray", "store"}


def test_every_node_asks_for_the_token_and_knows_it(services: dict[str, Any]) -> None:
    for name in NODES:
        environment = services[name]["environment"]
        assert environment["RAY_AUTH_MODE"] == "token"
        given = {one["source"] for one in services[name]["secrets"]}
        named = {value for value in environment.values() if str(value).startswith(SECRETS)}
        assert named == {SECRETS + secret for secret in given}
        assert environment["RAY_AUTH_TOKEN_PATH"] == SECRETS + "ray_token"


def test_every_node_waits_for_a_head_that_is_gone(services: dict[str, Any]) -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    assert {services[node]["environment"][name] for node in NODES} == {ENVIRONMENT[name]}


def test_all_nodes_are_of_one_image_which_has_ray(services: dict[str, Any]) -> None:
    assert {services[name]["image"] for name in NODES} == {"partywall:cluster"}
    assert {services[name]["build"]["args"]["EXTRAS"] for name in NODES} == {"cluster"}


@pytest.mark.parametrize("name", NODES)
def test_ray_understands_how_it_is_started(name: str, services: dict[str, Any]) -> None:
    scripts = pytest.importorskip("ray.scripts.scripts", reason="needs partywall[cluster]")
    told = scripts.start.make_context("start", ray_options(services[name])).params
    assert told["block"] is (name != "door")
    if name == "head":
        assert (told["head"], told["port"], told["num_cpus"]) == (True, 6399, 0)
        assert services["head"]["environment"]["RAY_REDIS_ADDRESS"] == "tables:6379"
        assert told["redis_password"]
    else:
        assert told["address"] == "head:6399"
        assert told["num_cpus"] == (1 if name == "worker" else 0)
    assert told["object_store_memory"] < int(services[name]["shm_size"])


def test_a_door_s_settings_go_together_and_fit_its_workers(
    services: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for secret in services["door"]["secrets"]:
        (tmp_path / secret["source"]).write_text("secret")
    for name, value in services["door"]["environment"].items():
        if name.startswith(ENV_PREFIX) and value is not None:
            monkeypatch.setenv(name, value.replace(SECRETS, f"{tmp_path}/"))
    settings = load_settings()
    assert settings.cluster
    assert settings.ray_address == "head:6399"
    assert settings.replicas == services["worker"]["deploy"]["replicas"]
    assert f"--num-cpus={settings.threads}" in ray_options(services["worker"])


def test_running_streams_have_time_to_end_at_doors_and_at_the_balancer(
    services: dict[str, Any],
) -> None:
    door, balancer = services["door"], services["balancer"]
    assert door["stop_grace_period"] == services["partywall"]["stop_grace_period"]
    ends_hard = re.search(r"hard-stop-after (\d+)s", (ROOT / "deploy/haproxy.cfg").read_text())
    assert ends_hard is not None
    drain = load_settings().drain_seconds
    assert drain < int(ends_hard[1]) < seconds(balancer["stop_grace_period"])
