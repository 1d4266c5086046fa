"""A module that is imported late is empty until it is needed, and then what it always was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import engine

ROOT = Path(engine.__file__).parents[1]
SOURCE = """
print("loaded")
def compiled():
    return 42
"""
PART = """
import thing
@thing.disable
def one(): return 1
@thing.disable(recursive=False)
def two(): return 2
"""


def printed(folder: Path, script: str) -> list[str]:
    """By a process in which `thing`, a package in `folder`, is imported late."""
    (folder / "thing").mkdir()
    (folder / "thing" / "__init__.py").write_text(SOURCE)
    (folder / "thing" / "part.py").write_text(PART)
    head = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(folder)!r}]\n"
    head += "from engine.system.late_compiler import import_late; import_late('thing')\n"
    done = subprocess.run(
        [sys.executable, "-c", head + script], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import thing; print(hasattr(thing, '__all__'))", ["False"]),
        ("from thing.part import one, two; print(one(), two())", ["1", "2"]),
        ("import thing; print(thing.compiled(), thing.compiled())", ["loaded", "42", "42"]),
        (
            "import thing.part, importlib; print(thing.compiled(), type(thing).__name__)\n"
            "print(importlib.import_module('thing') is thing)",
            ["loaded", "42", "module", "True"],
        ),
    ],
)
def test_it_is_loaded_once_more_than_marks_are_asked_of_it(
    script: str, expected: list[str], tmp_path: Path
) -> None:
    assert printed(tmp_path, script) == expected
