"""The rooms of the code, and the doors between them: what a module imports, wherever it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
DOORS = {
    "app": {"tenants", "engine"},
    "engine": {"kernels"},
    "kernels": set[str](),
    "tenants": {"engine.api", "engine.blocks.hashing"},
    "bench": {"app", "tenants", "engine", "kernels"},
}
"""What each room may import besides itself; of the engine, tenants take hashes and their values."""


def modules(room: str) -> dict[str, Path]:
    paths = (PROJECT / room).rglob("*.py")
    names = {".".join(path.relative_to(PROJECT).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


MODULES = {name: path for room in DOORS for name, path in modules(room).items()}


def imported(path: Path) -> Iterator[str]:
    """Modules of ours that one imports when it runs; a type checker's alone are none."""
    tree = ast.parse(path.read_text())
    checked = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in inside]
        yield from (name for name in names if name in MODULES and id(node) not in checked)


IMPORTS = {name: set(imported(path)) - {name} for name, path in MODULES.items()}


@pytest.mark.parametrize("room", DOORS)
def test_a_room_uses_its_doors_alone(room: str) -> None:
    allowed = DOORS[room] | {room}
    through_walls = [
        f"{name} imports {target}"
        for name in modules(room)
        for target in IMPORTS[name]
        if target not in allowed and target.split(".")[0] not in allowed
    ]
    assert len(modules(room)) > 5
    assert through_walls == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {name: set(targets) for name, targets in IMPORTS.items()}
    while True:  # what imports nothing that is left is in no circle
        done = {name for name, targets in left.items() if not targets & left.keys()}
        if not done:
            break
        left = {name: targets for name, targets in left.items() if name not in done}
    assert left == {}
