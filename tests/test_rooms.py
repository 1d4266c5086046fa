"""The rooms of the code, the doors between them, and its floors: what a module imports, wherever.

A room is a folder, or a file beside folders. What a room imports is on a lower floor than the room
itself: where two need each other, over whatever way, neither can be read or tested alone.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
MOST_FLOORS = 13
MOST_FILES = 16
MOST_LINES = 400
_WRITTEN = {".py", ".c", ".h", ".js", ".css", ".html"}
_OTHERS = {"vendor", "node_modules"}
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


@functools.cache
def imports(module: str) -> set[str]:
    """Modules of ours that this one imports when it runs, besides itself."""
    return set(_imported(MODULES[module])) - {module}


def _imported(path: Path) -> Iterator[str]:
    """What a type checker alone imports does not count."""
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


@pytest.mark.parametrize("room", DOORS)
def test_a_room_uses_its_doors_alone(room: str) -> None:
    allowed = DOORS[room] | {room}
    through_walls = [
        f"{name} imports {target}"
        for name in modules(room)
        for target in imports(name)
        if target not in allowed and target.split(".")[0] not in allowed
    ]
    assert len(modules(room)) > 5
    assert through_walls == []


def rooms_in(folder: str) -> Mapping[str, set[str]]:
    """What lies in a folder, a room each, with the others there that it imports."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for name in MODULES:
        if name.startswith(f"{folder}."):
            room = _room(name, folder)
            inside = {target for target in imports(name) if target.startswith(f"{folder}.")}
            rooms[room] |= {_room(target, folder) for target in inside} - {room}
    return rooms


def _room(module: str, folder: str) -> str:
    return module.removeprefix(f"{folder}.").partition(".")[0]


def floors(rooms: Mapping[str, set[str]]) -> list[list[str]]:
    """The rooms from the ground up. Raises `CycleError`."""
    left = TopologicalSorter(rooms)
    left.prepare()
    found = []
    while left:
        found.append(sorted(left.get_ready()))
        left.done(*found[-1])
    return found


FOLDERS = sorted({name.rpartition(".")[0] for name in MODULES} - {""})


@pytest.mark.parametrize("folder", [one for one in FOLDERS if not one.startswith("bench")])
def test_no_rooms_need_each_other(folder: str) -> None:
    assert len(floors(rooms_in(folder))) <= MOST_FLOORS


def test_rooms_that_need_each_other_are_found() -> None:
    with pytest.raises(CycleError):
        floors({"kitchen": {"hall"}, "hall": {"stairs"}, "stairs": {"kitchen"}})


def sources() -> Iterator[Path]:
    """What is written by hand, in each language."""
    for room in DOORS:
        for path in (PROJECT / room).rglob("*"):
            if path.suffix in _WRITTEN and _OTHERS.isdisjoint(path.parts):
                yield path


def test_no_folder_has_more_files_than_one_can_survey() -> None:
    files = Counter(path.parent for path in sources())
    assert {str(folder): many for folder, many in files.items() if many > MOST_FILES} == {}


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sources()}
    assert {str(path): many for path, many in lengths.items() if many > MOST_LINES} == {}
