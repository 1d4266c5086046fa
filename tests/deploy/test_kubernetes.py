"""The manifests: valid by Kubernetes' and KubeRay's schemas, and in step with each other."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.cluster.launch import ENVIRONMENT
from app.settings import ENV_PREFIX, load_settings
from tests.deploy.conftest import ROOT

kubernetes_validate: Any = pytest.importorskip("kubernetes_validate")
jsonschema: Any = pytest.importorskip("jsonschema")
yaml: Any = pytest.importorskip("yaml")

FOLDER = ROOT / "deploy" / "kubernetes"
LISTED = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
OBJECTS: list[dict[str, Any]] = [
    one for name in LISTED for one in yaml.safe_load_all((FOLDER / name).read_text())
]
RAY_SCHEMA = json.loads((Path(__file__).parent / "raycluster.json").read_text())
KUBERNETES = "1.34"
SECRETS = {
    "partywall": {"admin_token", "metrics_token", "pepper", "redis_password"},
    "partywall-ray": {"auth_token"},
}

Object = dict[str, Any]


def found(kind: str, name: str) -> Object:
    (one,) = [o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return one


def groups() -> list[Object]:
    """Ray's head, and its workers."""
    spec = found("RayCluster", "partywall")["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def pods() -> dict[str, Object]:
    """The specification of each kind of pod, by its container's name."""
    templates = [group["template"] for group in groups()]
    templates += [
        o["spec"]["template"] for o in OBJECTS if o["kind"] in ("Deployment", "StatefulSet")
    ]
    return {one["spec"]["containers"][0]["name"]: one["spec"] for one in templates}


def container(name: str) -> Object:
    (one,) = pods()[name]["containers"]
    return dict(one)


def environment(name: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(name)["env"]}


def validate(one: Object) -> None:
    """Raises what its schema's validator does; unknown fields are errors."""
    if one["kind"] != "RayCluster":
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
        return
    jsonschema.validate(one["spec"], RAY_SCHEMA)
    spec = one["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": group["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_a_manifest_is_what_its_schema_wants(one: Object) -> None:
    validate(one)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("RayCluster", ["spec"]),
        ("RayCluster", ["spec", "workerGroupSpecs", 0]),
        ("RayCluster", ["spec", "headGroupSpec", "template", "spec", "containers", 0]),
        ("Deployment", ["spec", "template", "spec"]),
    ],
)
def test_a_field_that_does_not_exist_is_found(kind: str, path: list[Any]) -> None:
    one = copy.deepcopy(found(kind, "partywall"))
    within: Any = one
    for step in path:
        within = within[step]
    within["imagine"] = 1
    errors = (jsonschema.ValidationError, kubernetes_validate.ValidationError)
    with pytest.raises(errors):
        validate(one)


def test_kustomize_builds_all_of_them_with_one_image() -> None:
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [program, "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(OBJECTS)
    images = re.findall(r"image: (\S+)", done.stdout)
    assert sorted(set(images)) == ["partywall:cluster", "redis:7.2-bookworm"]
    assert images.count("partywall:cluster") == 3


def test_all_files_are_listed() -> None:
    assert {*LISTED, "kustomization.yaml"} == {file.name for file in FOLDER.iterdir()}


@pytest.mark.parametrize("name", pods())
def test_a_pod_has_no_rights_that_it_does_not_need(name: str) -> None:
    pod, within = pods()[name], container(name)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    confined = within["securityContext"]
    assert confined["readOnlyRootFilesystem"]
    assert confined["allowPrivilegeEscalation"] is False
    assert confined["capabilities"] == {"drop": ["ALL"]}
    assert within["resources"]["limits"]["memory"]
    if name not in ("redis", "tables"):
        user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)[-1]
        given = pod["securityContext"]
        assert (str(given["runAsUser"]), str(given["runAsGroup"])) == user


@pytest.mark.parametrize("name", pods())
def test_what_is_mounted_is_there_and_what_is_there_is_mounted(name: str) -> None:
    volumes = {one["name"]: one for one in pods()[name].get("volumes", [])}
    claims = found("StatefulSet", "partywall-redis")["spec"]["volumeClaimTemplates"]
    kept = {one["metadata"]["name"] for one in claims} if name == "redis" else set()
    assert {one["name"] for one in container(name)["volumeMounts"]} == volumes.keys() | kept
    for one in volumes.values():
        if "secret" in one:
            items = {item["key"] for item in one["secret"].get("items", [])}
            assert items <= SECRETS[one["secret"]["secretName"]]
        if "persistentVolumeClaim" in one:
            claim = one["persistentVolumeClaim"]["claimName"]
            (mode,) = found("PersistentVolumeClaim", claim)["spec"]["accessModes"]
            assert mode == "ReadWriteMany"


def test_a_door_s_settings_go_together_and_fit_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = {"/run/secrets/partywall/" + name for name in SECRETS["partywall"]}
    given = environment("door")
    assert {
        value for value in given.values() if value.startswith("/run/secrets/partywall")
    } == mounted
    for name, value in given.items():
        if name.startswith(ENV_PREFIX):
            (tmp_path / Path(value).name).write_text("secret")
            monkeypatch.setenv(name, value.replace("/run/secrets/partywall", str(tmp_path)))
    settings = load_settings()
    (workers,) = found("RayCluster", "partywall")["spec"]["workerGroupSpecs"]
    resources = container("ray-worker")["resources"]
    assert settings.cluster
    assert settings.replicas == workers["replicas"]
    assert str(settings.threads) == resources["limits"]["cpu"] == resources["requests"]["cpu"]
    assert settings.kv_memory is not None
    assert (
        settings.kv_memory + 2**31 < int(resources["limits"]["memory"].removesuffix("Gi")) * 2**30
    )
    assert settings.ray_address == "partywall-head-svc:6379"
    assert f"--address={settings.ray_address}" in container("door")["command"][-1]
    assert (
        settings.redis_url
        == f"redis://{found('Service', 'partywall-redis')['metadata']['name']}:6379/0"
    )


def test_every_node_asks_for_the_token_and_its_version_is_the_image_s() -> None:
    for name in ("ray-head", "ray-worker", "door"):
        assert environment(name)["RAY_AUTH_MODE"] == "token"
        assert environment(name)["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray/auth_token"
        mounts = {one["name"]: one["mountPath"] for one in container(name)["volumeMounts"]}
        assert mounts["token"] == "/run/secrets/ray"
    version = found("RayCluster", "partywall")["spec"]["rayVersion"]
    assert f"ray=={version}\n" in (ROOT / "constraints.txt").read_text()


def test_the_head_finds_its_tables_again_and_every_node_waits_for_it() -> None:
    options = found("RayCluster", "partywall")["spec"]["gcsFaultToleranceOptions"]
    assert (
        options["redisAddress"]
        == f"{found('Service', 'partywall-tables')['metadata']['name']}:6379"
    )
    assert options["redisPassword"]["valueFrom"]["secretKeyRef"]["key"] in SECRETS["partywall-ray"]
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    for node in ("ray-head", "ray-worker", "door"):
        assert environment(node)[name] == ENVIRONMENT[name]


def test_ray_understands_how_its_nodes_are_started() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts", reason="needs partywall[cluster]")
    for group in groups():
        options = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
        scripts.start.make_context("start", [*options, "--block"])
    words = container("door")["command"][-1].replace("\\\n", " ").split()
    assert words[:2] == ["ray", "start"]
    told = scripts.start.make_context("start", words[2 : words.index("&&")]).params
    assert told["num_cpus"] == 0
    assert words[words.index("&&") :] == ["&&", "exec", "partywall", "serve"]


def test_running_streams_have_time_to_end() -> None:
    pause = int(container("door")["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pods()["door"]["terminationGracePeriodSeconds"] > pause + load_settings().drain_seconds


def test_the_tenants_service_has_no_port_for_operators_and_probes_use_that() -> None:
    (port,) = found("Service", "partywall")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (8000, "http")
    door = container("door")
    assert {one["name"]: one["containerPort"] for one in door["ports"]} == {
        "http": 8000,
        "admin": 8001,
    }
    probes = {
        name: door[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }
    assert {one["port"] for one in probes.values()} == {"admin"}
    assert probes["readiness"]["path"] == "/readyz"
    assert probes["liveness"]["path"] == probes["startup"]["path"] == "/healthz"


def test_what_selects_pods_finds_some() -> None:
    spec = found("RayCluster", "partywall")["spec"]
    labels = [
        o["spec"]["template"]["metadata"]["labels"] for o in OBJECTS if "template" in o["spec"]
    ]
    labels.append(
        groups()[0]["template"]["metadata"]["labels"]
        | {"ray.io/cluster": "partywall", "ray.io/node-type": "head"}
    )
    for group in spec["workerGroupSpecs"]:  # as KubeRay adds them
        added = {"ray.io/cluster": "partywall", "ray.io/group": group["groupName"]}
        labels.append(group["template"]["metadata"]["labels"] | added)
    for one in OBJECTS:
        selector = one["spec"].get("selector") or one["spec"].get("podSelector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector).items()
            assert any(wanted <= given.items() for given in labels), one["metadata"]["name"]
