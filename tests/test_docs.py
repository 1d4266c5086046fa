"""The docs say what the code says: its error codes, its rooms, its figures, its files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import registry

PROJECT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md"))]
ADMIN = PROJECT / "app" / "admin"


def literals(node: ast.AST | None) -> Iterator[str]:
    """The strings that an expression can be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from literals(value)
    elif isinstance(node, ast.Tuple):
        for element in node.elts:
            yield from literals(element)
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)
    elif isinstance(node, ast.Call):  # `CODES.get(status, "default")`
        yield from (text for value in node.args for text in literals(value))


def codes_in(node: ast.AST) -> Iterator[str]:
    """Error codes that one node of a module's tree gives or keeps."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "invalid_request":
            yield from (code for value in node.args[2:3] for code in literals(value))
        if name in ("_about", "_unavailable"):
            yield from literals(node.args[1])
        for keyword in node.keywords:
            if keyword.arg in ("code", "custom_error_type"):
                yield from literals(keyword.value)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if any(name.lower().endswith("code") or "_CODES" in name for name in names):
            yield from literals(node.value)
        if "_STORE_ERRORS" in names:
            yield from literals(node.value)
    elif isinstance(node, ast.FunctionDef):
        optional = node.args.args[len(node.args.args) - len(node.args.defaults) :]
        for argument, default in zip(optional, node.args.defaults, strict=True):
            if argument.arg == "code":
                yield from literals(default)


def codes_given(*, by_admin: bool) -> set[str]:
    modules = [
        path
        for path in (PROJECT / "app").rglob("*.py")
        if path.is_relative_to(ADMIN) == by_admin and "cli" not in path.parts
    ]
    trees = (ast.parse(path.read_text()) for path in modules)
    return {code for tree in trees for node in ast.walk(tree) for code in codes_in(node)}


def codes_documented(document: str) -> set[str]:
    """What the tables of error codes name: rows that begin with a status."""
    rows = re.findall(r"^\| \d{3}.*?\|(.*?)\|", (PROJECT / document).read_text(), re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([a-z_]+)`", row)}


@pytest.mark.parametrize(
    ("document", "by_admin"), [("docs/protocol.md", False), ("docs/operating.md", True)]
)
def test_every_error_code_is_documented_and_no_other(document: str, by_admin: bool) -> None:
    given = codes_given(by_admin=by_admin)
    assert len(given) > 10
    assert codes_documented(document) == given


def test_every_benchmark_is_among_the_commands_that_the_docs_tell() -> None:
    text = (PROJECT / "docs" / "benchmarks.md").read_text()
    told = set(re.findall(r"-m bench ([a-z-]+)", text))
    assert told >= set(registry.names())


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md", "bench/LOG.md"])
def test_what_a_document_points_to_is_there(document: str) -> None:
    text = (PROJECT / document).read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    gone = [link for link in links if not (PROJECT / document).parent.joinpath(link).exists()]
    rooms = re.findall(r"`((?:app|engine|kernels|tenants|bench|tests|docs)/[\w./]*)`", text)
    gone += [room for room in rooms if not (PROJECT / room).exists()]
    assert gone == []


def test_the_readme_stays_short() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 180
