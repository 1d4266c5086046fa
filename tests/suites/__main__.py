"""`python -m tests.suites [NAME ...] [--json FILE]`: run suites, and print what passed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from bench.common.service import running_service, served_model
from engine.model.weights import DEFAULT_MODEL, resolve_model
from tests.suites.environments import Missing, command, prepared
from tests.suites.table import SUITES, Model, Suite

_SUITE_SECONDS = 1800
_SERVERS: dict[Model, tuple[str, Sequence[str]]] = {
    "default": ("app.cli", ["--dtype", "float32"]),
    "calling": ("tests.suites.calling", ["--default-max-output-tokens", "512"]),
}
_CACHE = Path(__file__).parents[2] / "build" / "suites"

Outcome = Literal["passed", "failed", "known", "skipped"]


@dataclass(frozen=True)
class Case:
    """One case of a suite. What failed is `known` where the table says why."""

    name: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class Found:
    """What one suite said."""

    suite: str
    packages: Sequence[str]
    model: Model
    seconds: float
    cases: Sequence[Case]

    def count(self, outcome: Outcome) -> int:
        """How many cases ended so."""
        return sum(case.outcome == outcome for case in self.cases)


class Servers:
    """Services that suites call, each started when it is first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._environments: dict[Model, dict[str, str]] = {}

    def environment(self, model: Model) -> dict[str, str]:
        """What a client has to know of the service, as environment variables."""
        if model not in self._environments:
            program, options = _SERVERS[model]
            service = self._stack.enter_context(running_service(options, program))
            api_key = service.create_tenant("suites")
            self._environments[model] = {
                "OPENAI_BASE_URL": f"{service.url}/v1",
                "OPENAI_API_KEY": api_key,
                "ANTHROPIC_BASE_URL": service.url,
                "ANTHROPIC_API_KEY": api_key,
                "SUITE_MODEL": served_model(service.url, api_key),
                "SUITE_MODEL_FOLDER": str(resolve_model(DEFAULT_MODEL)),
            }
        return self._environments[model]


def run(name: str, suite: Suite, cache: Path, servers: Servers) -> Found:
    """Install and run one suite. What it lacks makes it one skipped case."""
    began = time.monotonic()
    try:
        folder = prepared(suite, cache / name)
        cases = _cases(suite, folder, servers.environment(suite.model))
    except Missing as error:
        cases = [Case(name, "skipped", str(error))]
    return Found(name, suite.packages, suite.model, time.monotonic() - began, cases)


def _cases(suite: Suite, folder: Path, environment: dict[str, str]) -> list[Case]:
    report, log = folder / "report.xml", folder / "log"
    report.unlink(missing_ok=True)
    home = {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    own = ("PARTYWALL_", "ANTHROPIC_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    with log.open("wb") as output:
        try:
            subprocess.run(
                command(suite, report.absolute()),
                cwd=folder,
                env=kept | home | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_SUITE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return [Case(suite.script, "failed", f"it took more than {_SUITE_SECONDS} s")]
    if not report.exists():
        return [Case(suite.script, "failed", f"it left no report; see {log}")]
    return [_case(suite, one) for one in ElementTree.parse(report).iter("testcase")]


def _case(suite: Suite, element: ElementTree.Element) -> Case:
    """A case of JUnit's XML, as pytest and Node write it."""
    parts = (element.get("classname", "").rpartition(".")[2], element.get("name", ""))
    name = ".".join(part for part in parts if part and part != "test")
    skipped, failed = element.find("skipped"), element.find("failure")
    if failed is None:
        failed = element.find("error")
    if skipped is not None:
        return Case(name, "skipped", skipped.get("message", ""))
    if failed is None:
        return Case(name, "passed")
    message = (failed.get("message") or failed.text or "")[:600]
    for part, why in suite.known.items():
        if part in name:
            return Case(name, "known", f"{why}: {message}")
    return Case(name, "failed", message)


def tell(found: Sequence[Found]) -> None:
    """Print a line for each suite, and one for each case that did not pass."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table("suite", "model", "passed", "failed", "known", "skipped", "seconds")
    for one in found:
        counts = [str(one.count(outcome)) for outcome in ("passed", "failed", "known", "skipped")]
        table.add_row(one.suite, one.model, *counts, f"{one.seconds:.0f}")
    console.print(table)
    for one in found:
        for case in one.cases:
            if case.outcome != "passed":
                line = " ".join(case.reason.split())[:400]
                console.print(f"{one.suite}: {case.name} {case.outcome}: {line}", markup=False)


def main() -> int:
    """Return 1 where a case failed for no known reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*SUITES, []], metavar="NAME", help="default: all"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="where packages are installed")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        servers = Servers(stack)
        names = arguments.names or list(SUITES)
        found = []
        for name in names:
            print(f"{name} ...", flush=True)
            found.append(run(name, SUITES[name], arguments.cache.absolute(), servers))
    tell(found)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return int(any(one.count("failed") for one in found))


if __name__ == "__main__":
    sys.exit(main())
