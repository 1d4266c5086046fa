"""An environment of its own for each suite: a Python one, a folder of npm's, or the JDK at hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.suites.table import Suite

_TEST_TOOLS = ("pytest==9.1.0", "pytest-asyncio==1.4.0", "pytest-timeout==2.4.0")
_PYTEST_INI = """[pytest]
asyncio_mode = auto
asyncio_default_test_loop_scope = session
asyncio_default_fixture_loop_scope = session
timeout = 120
"""
_INSTALL_SECONDS = 900
_STAMP = "installed"


class Missing(Exception):
    """The machine lacks what a suite runs on, or its packages cannot be had."""


def prepared(suite: Suite, folder: Path) -> Path:
    """The environment of a suite in `folder`, made anew where its packages are others than asked.

    The suite's file is copied into it: so Node finds the packages, and none of ours is found by
    chance. Raises `Missing`.
    """
    program = {"py": sys.executable, "mjs": "npm", "java": "java"}[suite.kind]
    if shutil.which(program) is None:
        raise Missing(f"there is no {program} on this machine")
    wanted = "\n".join((*suite.packages, *_TEST_TOOLS, sys.version))
    stamp = folder / _STAMP
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _install(suite, folder)
        stamp.write_text(wanted)
    (folder / "pytest.ini").write_text(_PYTEST_INI)
    shutil.copy(Path(__file__).parent / "clients" / suite.script, folder)
    return folder


def command(suite: Suite, report: Path) -> list[str]:
    """What runs a suite within its environment, and leaves JUnit's XML in `report`."""
    if suite.kind == "py":
        options = [
            "--import-mode=importlib",
            "--rootdir=.",
            "-c",
            "pytest.ini",
            "-p",
            "no:cacheprovider",
        ]
        return ["venv/bin/pytest", *options, f"--junitxml={report}", suite.script]
    if suite.kind == "mjs":
        reporter = ["--test-reporter=junit", f"--test-reporter-destination={report}"]
        return ["node", "--test", *reporter, suite.script]
    return ["java", suite.script, str(report)]


def _install(suite: Suite, folder: Path) -> None:
    if suite.kind == "py":
        _run([sys.executable, "-m", "venv", "venv"], folder)
        python = folder / "venv" / "bin" / "python"
        if suite.shares_project:
            library = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
            (library / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
        _run([str(python), "-m", "pip", "install", "-q", *_TEST_TOOLS, *suite.packages], folder)
    elif suite.kind == "mjs":
        (folder / "package.json").write_text("{}\n")
        _run(["npm", "install", "--silent", "--no-fund", "--no-audit", *suite.packages], folder)


def _run(arguments: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            arguments, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{arguments[0]} took too long") from error
    if done.returncode:
        raise Missing(f"{' '.join(arguments[:4])}: {(done.stdout + done.stderr)[-800:]}")
