"""`python -m bench NAME [options] --json FILE`."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.common.figures import listed
from bench.common.machine import describe_machine, describe_versions, warn_if_busy
from bench.registry import UNHURRIED, BenchError, load, names, summary

_NOT_PARAMETERS = ("json", "list", "bench", "api_key")


def main() -> int:
    """Run one bench, or list them; returns the exit status."""
    console = Console()
    try:
        options = _parser().parse_args()
        if options.list or options.bench is None:
            _print_list(console)
            return 0 if options.list else 2
        bench = load(options.bench)
        found: dict[str, object] = {}
        if options.bench not in UNHURRIED:
            found["foreign_load_percent"] = warn_if_busy()
        result = bench.run(options)
    except (BenchError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    given = {name: value for name, value in vars(options).items() if name not in _NOT_PARAMETERS}
    document = {
        "bench": options.bench,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "parameters": {**given, **found, **result.parameters},
        # JSON has no infinity: null for what could not be computed.
        "figures": {name: x if math.isfinite(x) else None for name, x in result.figures.items()},
    }
    console.print(_header(document))
    for table in result.tables or [listed(result.figures, bench.FIGURES)]:
        console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2, default=str) + "\n")
    if result.failure:
        print(f"error: {result.failure}", file=sys.stderr)
    return int(bool(result.failure))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list all benches and their figures")
    benches = parser.add_subparsers(dest="bench", metavar="NAME")
    # A bench needs no other's packages, and may set what torch reads when it is first imported.
    wanted = [name for name in names() if name in sys.argv[1:2]]
    for name in wanted or names():
        try:
            bench = load(name)
        except ModuleNotFoundError as missing:
            if wanted:
                raise
            benches.add_parser(name, help=_needs(missing))
            continue
        sub = benches.add_parser(
            name,
            help=summary(bench),
            description=summary(bench),
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        sub.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as JSON")
        bench.add_arguments(sub)
    return parser


def _print_list(console: Console) -> None:
    for name in names():
        try:
            bench = load(name)
        except ModuleNotFoundError as missing:
            console.print(f"{name}: {_needs(missing)}")
            continue
        table = Table("figure", "meaning", title=f"{name}: {summary(bench)}", title_justify="left")
        for figure, meaning in bench.FIGURES.items():
            table.add_row(figure, meaning)
        console.print(table)


def _needs(missing: ModuleNotFoundError) -> str:
    return f"not here, needs the package {missing.name}"


def _header(document: dict[str, object]) -> Table:
    table = Table(show_header=False, box=None)
    for part in ("machine", "versions", "parameters"):
        values = document[part]
        assert isinstance(values, dict)
        table.add_row(part, ", ".join(f"{name}={value}" for name, value in values.items()))
    return table


if __name__ == "__main__":
    # So that servers that a bench has started are stopped when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
