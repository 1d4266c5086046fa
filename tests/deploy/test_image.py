"""The Dockerfile: linted, and in step with the package that it installs."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_packages

from app.settings import Settings, env_name
from engine.model import weights
from tests.deploy.conftest import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = ["app", "engine", "kernels", "tenants"]


def copied() -> list[str]:
    """What the build takes from the source tree."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def test_hadolint_finds_nothing_here_and_something_in_a_careless_file(tmp_path: Path) -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("hadolint is not installed")

    def lint(file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, str(file)], capture_output=True, text=True, timeout=30)

    found = lint(ROOT / "Dockerfile")
    assert found.returncode == 0, found.stdout
    careless = tmp_path / "Dockerfile"
    careless.write_text("FROM debian\nRUN apt-get install curl\n")
    assert lint(careless).returncode != 0


def test_the_base_image_is_a_build_argument() -> None:
    assert re.search(r"^ARG BASE_IMAGE=\S+", DOCKERFILE, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(bases) == {"${BASE_IMAGE}", "dependencies"}
    assert bases[-1] == "${BASE_IMAGE}", "what is only built with stays behind"


def test_the_image_runs_as_a_user_that_kubernetes_can_see_is_not_root() -> None:
    user = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[-1]
    assert all(int(number) > 0 for number in user)


def test_every_variable_of_the_image_is_a_setting() -> None:
    given = set(re.findall(r"\b(PARTYWALL_[A-Z_]+)=", DOCKERFILE))
    assert given
    assert given <= {env_name(field) for field in Settings.model_fields}


def test_what_is_written_lies_in_the_folders_of_the_image_s_user() -> None:
    owned = re.search(r"install -d .* -o partywall -g partywall (.+)$", DOCKERFILE, re.MULTILINE)
    assert owned is not None
    folders = owned[1].split()
    written = re.findall(r"\b[A-Z_]+(?:_DIR|_HOME)=(/\S+)", DOCKERFILE)
    assert len(written) == 4
    assert all(path.startswith(tuple(folders)) for path in written)


def test_the_default_model_is_the_one_the_engine_asks_for() -> None:
    assert weights._WHEEL_REQUIREMENT in (ROOT / "constraints.txt").read_text().splitlines()


def test_everything_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]
    assert set(ROOMS) < set(copied())
    for name in copied():
        assert (ROOT / name).exists()
        assert name in sent


def test_the_package_is_built_with_a_compiler_that_stays_behind() -> None:
    stage, image = DOCKERFILE.split(" AS package\n")[1].split("\nFROM ")
    assert stage.index(" gcc ") < stage.index("pip wheel")
    assert "setup.py" in stage
    assert not re.search(r"--no-install-recommends[^&]*gcc", image)


@pytest.mark.parametrize("room", ROOMS)
def test_every_package_and_every_data_file_is_installed(room: str) -> None:
    setuptools = PROJECT["tool"]["setuptools"]
    found = find_packages(str(ROOT), include=setuptools["packages"]["find"]["include"])
    for folder in [ROOT / room, *(ROOT / room).rglob("*/")]:
        package = ".".join(folder.relative_to(ROOT).parts)
        if folder.name == "__pycache__" or not (folder / "__init__.py").exists():
            continue
        assert package in found, f"{package} is missing in an installed copy"
    for file in (ROOT / room).rglob("*"):
        if file.is_dir() or file.suffix in (".py", ".pyc"):
            continue
        if file.suffix in (".c", ".h", ".so"):  # compiled into the package
            continue
        patterns = [
            f"{package.replace('.', '/')}/{pattern}"
            for package, names in setuptools["package-data"].items()
            for pattern in names
        ]
        name = str(file.relative_to(ROOT))
        assert any(fnmatch.fnmatch(name, one) for one in patterns), f"{name} is not installed"


def test_only_the_image_for_a_gpu_carries_triton(services: dict[str, Any]) -> None:
    project = PROJECT["project"]
    assert re.search(r"^RUN python install.py \$\{EXTRAS\} ", DOCKERFILE, re.MULTILINE)
    assert not [one for one in project["dependencies"] if one.startswith("triton")]
    extras = services["partywall-gpu"]["build"]["args"]["EXTRAS"]
    (only,) = project["optional-dependencies"][extras]
    assert only.startswith("triton>")


@pytest.mark.parametrize(
    ("has_triton", "has_header", "has_compiler", "built"),
    [
        (False, False, False, True),
        (True, True, True, True),
        (True, False, True, False),
        (True, True, False, False),
    ],
)
def test_an_image_in_which_triton_could_not_compile_is_not_built(
    has_triton: bool, has_header: bool, has_compiler: bool, built: bool, tmp_path: Path
) -> None:
    script = re.findall(r"^RUN (if python -c 'import triton'.*?\bfi)$", DOCKERFILE, re.M | re.S)[0]
    header = tmp_path / "include" / "Python.h"
    header.parent.mkdir()
    if has_header:
        header.touch()
    image = tmp_path / "bin"
    image.mkdir()
    python = f"""case "$2" in *triton*) exit {int(not has_triton)};; esac
    echo {header.parent}"""
    (image / "python").write_text(f"#!/bin/sh\n{python}\n")
    (image / "python").chmod(0o755)
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc")
    if has_compiler:
        (image / "gcc").write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
        (image / "gcc").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", script.replace("\\\n", "")],
        env={"PATH": str(image)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode == 0) is built
    assert ("python3-dev" in done.stderr) is not built
