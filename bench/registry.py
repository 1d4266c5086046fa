"""All benches by name, and what a bench is made of."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from rich.table import Table

_MODULES = {
    "serve": "bench.service.serve",
    "fairness": "bench.tenants.fairness",
    "isolation": "bench.tenants.isolation",
    "audit": "bench.tenants.audit",
    "leases": "bench.tenants.leases",
    "sockets": "bench.service.sockets",
    "socket-overhead": "bench.service.socket_overhead",
    "log-lines": "bench.service.log_lines",
    "metrics": "bench.service.metrics_cost",
    "stall": "bench.service.stall",
    "soak": "bench.service.soak",
    "wall": "bench.service.wall",
    "console": "bench.console.console",
    "trace": "bench.engine.trace",
    "recovery": "bench.engine.recovery",
    "reuse": "bench.engine.reuse",
    "layers": "bench.engine.layers",
    "restart": "bench.engine.restart",
    "hybrid": "bench.hybrid.hybrid",
    "pictures": "bench.pictures.pictures",
    "paper": "bench.paper",
    "quantize": "bench.engine.quantize",
    "step": "bench.engine.step",
    "speculate": "bench.speculate.speculate",
    "structured": "bench.formats.structured",
    "kernels": "bench.kernels.kernels",
    "recurrent": "bench.kernels.recurrent",
    "gpu": "bench.gpu.gpu",
    "routing": "bench.cluster.routing",
    "scale": "bench.cluster.scale",
    "cluster": "bench.cluster.replicas",
    "disaggregated": "bench.cluster.disaggregated",
    "peers": "bench.peers.peers",
    "experts": "bench.experts.experts",
    "adapters": "bench.adapters.adapters",
}
UNHURRIED = frozenset(
    {
        *("wall", "reuse", "layers", "hybrid", "paper", "quantize", "kernels", "gpu", "routing"),
        "scale",
    }
)
"""Those that do not ask how busy other programs keep the machine."""


@dataclass(frozen=True)
class Result:
    """What a bench found: figures for a machine, tables for a reader, parameters besides options.

    Without tables the reader is shown the figures. With a `failure` it fails all the same once they
    are printed and written; the text says why.
    """

    figures: dict[str, float]
    tables: list[Table] = field(default_factory=list)
    parameters: Mapping[str, object] = field(default_factory=dict)
    failure: str = ""


class Bench(Protocol):
    """The contents of a bench's module; its docstring's first line says what it measures."""

    __doc__: str | None
    FIGURES: Mapping[str, str]
    """Every figure it can print, with its meaning and unit."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the bench's own options."""
        ...

    def run(self, options: argparse.Namespace) -> Result:
        """Measure. Raises `BenchError` when it cannot."""
        ...


class BenchError(Exception):
    """The bench could not measure; the message says why."""


def names() -> list[str]:
    """Every bench there is."""
    return list(_MODULES)


def load(name: str) -> Bench:
    """The bench of that name."""
    return cast("Bench", importlib.import_module(_MODULES[name]))


def summary(bench: Bench) -> str:
    """The first line of a bench's docstring."""
    return (bench.__doc__ or "").strip().partition("\n")[0]
