from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

Compose = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def compose() -> Compose:
    """Compose's own program, over the project's file unless told otherwise."""
    program = shutil.which("docker-compose")
    # The Python package of that name is a wrapper, which hides the exit status.
    package = importlib.util.find_spec("compose")
    if package is not None and package.origin is not None:
        program = str(Path(package.origin).with_name("docker-compose"))
    if program is None or not Path(program).exists():
        pytest.skip("docker-compose is not installed")

    def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
        command = [program, "--project-directory", str(folder), *arguments]
        environment = {"PATH": "/usr/bin:/bin"}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, cwd=folder, env=environment
        )

    return run


@pytest.fixture(scope="session")
def services(compose: Compose) -> dict[str, Any]:
    """Every service of every profile, as compose understands it."""
    profiles = [f"--profile={name}" for name in ("cpu", "gpu", "cluster")]
    answer = compose(*profiles, "config", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    described: dict[str, Any] = json.loads(answer.stdout)["services"]
    return described
