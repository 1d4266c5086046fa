"""What the engine's policy is made of: no framework, so that it can be tested without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import engine

ROOT = Path(engine.__file__).parents[1]
HEAVY = {"torch", "transformers", "triton"}
COMPUTING = {"assembly", "batch", "draft_model", "model", "run"}


def modules() -> list[str]:
    """Everything outside of the rooms that compute, and what puts steps in order."""
    paths = [
        path
        for path in (ROOT / "engine").rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in COMPUTING and path.name != "__init__.py"
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    steps = ["engine.assembly.process", "engine.draft_model.drafter", "engine.run.steps"]
    return [*sorted(names), *steps]


def test_policy_runs_without_torch() -> None:
    found = modules()
    assert {"engine.blocks.pool", "engine.schedule.scheduler", "engine.serve.core"} <= set(found)
    script = (
        "import importlib, json, sys\n"
        "blame = {}\n"
        f"for name in {found!r}:\n"
        "    importlib.import_module(name)\n"
        f"    for heavy in {sorted(HEAVY)!r}:\n"
        "        if heavy in sys.modules:\n"
        "            blame.setdefault(heavy, name)\n"
        "print(json.dumps(blame))"
    )
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert json.loads(output) == {}, "which module was the first to import what"
