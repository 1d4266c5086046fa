"""The wheel, in an environment of its own, as `pipx` and `uv tool install` would have it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from tests.deploy.conftest import ROOT
from tests.end_to_end.program import start

ROOMS = ("app", "engine", "kernels", "tenants")
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the build leaves nothing among the sources."""
    source = tmp_path_factory.mktemp("source")
    built = ("__pycache__", "*.so")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns(*built))
    for file in FILES:
        shutil.copy(ROOT / file, source)
    wheels = tmp_path_factory.mktemp("wheels")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(wheels)]
    pip(sys.executable, "wheel", *options, str(source))
    (found,) = wheels.glob("*.whl")
    return found


def pip(python: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed command, in an environment whose dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    # What a .pth file adds is found last, and its own .pth files (an editable copy's) are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip(str(folder / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel))
    return folder / "bin" / "partywall"


@pytest.mark.exhaustive
def test_a_wheel_has_every_file_of_the_console(wheel: Path) -> None:
    folder = ROOT / "app" / "console" / "static"
    pages = {str(file.relative_to(ROOT)) for file in folder.rglob("*") if file.is_file()}
    assert "app/console/static/index.html" in pages
    assert pages <= set(ZipFile(wheel).namelist())


@pytest.mark.exhaustive
def test_an_installed_copy_serves_and_chats_from_an_empty_folder(
    wheel: Path, program: Path, tmp_path: Path
) -> None:
    assert any("kernels/native/_library" in name for name in ZipFile(wheel).namelist())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    started = start(tmp_path, program=[str(program)], cwd=elsewhere)
    try:
        assert str(program) in started.log.read_text(), "the line to paste names this copy"
        key = started.ready["api_key"]
        answer = httpx.post(
            f"{started.url}/v1/responses",
            headers={"authorization": f"Bearer {key}"},
            json={
                "model": "smollm2-135m-instruct",
                "input": "Hello!",
                "max_output_tokens": 8,
                "ignore_eos": True,
            },
            trust_env=False,
            timeout=60,
        )
        assert answer.json()["usage"]["output_tokens"] == 8
        said = subprocess.run(
            [str(program), "chat", "--url", started.url, "--api-key", key],
            input="Hello!\n",
            capture_output=True,
            text=True,
            timeout=60,
            cwd=elsewhere,
        )
        assert said.returncode == 0, said.stderr
        assert said.stdout.strip()
    finally:
        started.stop()
    assert list(elsewhere.iterdir()) == []
