"""One picture for each figure of the paper. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from bench.common import plots
from bench.paper.report import CATEGORIES, Findings
from bench.paper.simulation import LATENCY, Curve
from bench.paper.systems import (
    FASTER_TRANSFORMER,
    GENERATE,
    MAX,
    ORACLE,
    PARTYWALL,
    POW2,
    WITHOUT_CACHE,
)

_COLOURS = {
    PARTYWALL: plots.BLUE,
    WITHOUT_CACHE: plots.SKY,
    ORACLE: plots.GREEN,
    POW2: plots.ORANGE,
    MAX: plots.VERMILION,
    FASTER_TRANSFORMER: plots.PURPLE,
    GENERATE: plots.GREY,
}
_CATEGORY_COLOURS = dict(
    zip(
        CATEGORIES,
        (plots.BLUE, plots.SKY, plots.ORANGE, plots.VERMILION, plots.LIGHT),
        strict=True,
    )
)
_TOP_LATENCY = 0.5


def draw_all(findings: Findings, folder: Path, wanted: str) -> list[Path]:
    """Write what was measured and is wanted into `folder`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawers: dict[str, tuple[str, object, Callable[[Findings, Path], None]]] = {
        "a": ("memory", findings.plain, _memory),
        "b": ("rates", findings.plain, _rates),
        "c": ("sharing", findings.savings, _savings),
        "d": ("prefix", findings.prefixes, _prefixes),
        "e": ("chat", findings.chat, _chat),
        "f": ("block-size", findings.block_sizes, _block_sizes),
        "g": ("batches", findings.plain, _batches),
    }
    written = []
    for letter in wanted:
        name, content, draw = drawers[letter]
        if content:
            written.append(folder / f"paper-{name}.png")
            draw(findings, written[-1])
    return written


def _memory(findings: Findings, path: Path) -> None:
    with plots.picture(path, len(findings.plain), 3.4, share_y=True) as (figure, all_axes):
        for axes, (workload, curves) in zip(all_axes, findings.plain.items(), strict=True):
            rows = {}
            for system, curve in curves.items():
                use = curve.saturated.memory
                rows[system] = {
                    name: 100 * getattr(use, field) / use.total
                    for name, field in CATEGORIES.items()
                }
            plots.draw_stacks(axes, rows, _CATEGORY_COLOURS)
            axes.set_title(workload)
        for axes in all_axes[1:]:
            axes.tick_params(axis="y", labelleft=False)
        all_axes[len(all_axes) // 2].set_xlabel("% of the KV memory")
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)


def _rates(findings: Findings, path: Path) -> None:
    with plots.picture(path, len(findings.plain), 3.6, share_y=True) as (figure, all_axes):
        for axes, (workload, curves) in zip(all_axes, findings.plain.items(), strict=True):
            _draw_curves(axes, curves)
            axes.set_title(workload)
        all_axes[0].set_ylabel("mean latency, s/token")
        all_axes[len(all_axes) // 2].set_xlabel("requests a second")
        _legend(figure, all_axes[0], list(next(iter(findings.plain.values()))))


def _prefixes(findings: Findings, path: Path) -> None:
    with plots.picture(path, len(findings.prefixes), share_y=True) as (figure, all_axes):
        for axes, (tokens, curves) in zip(all_axes, findings.prefixes.items(), strict=True):
            _draw_curves(axes, curves)
            axes.set_title(f"{tokens} shared tokens")
            axes.set_xlabel("requests a second")
        all_axes[0].set_ylabel("mean latency, s/token")
        _legend(figure, all_axes[0], list(next(iter(findings.prefixes.values()))))


def _chat(findings: Findings, path: Path) -> None:
    with plots.picture(path) as (figure, (axes,)):
        _draw_curves(axes, findings.chat)
        axes.set_xlabel("requests a second")
        axes.set_ylabel("mean latency, s/token")
        _legend(figure, axes, list(findings.chat))


def _draw_curves(axes: Axes, curves: dict[str, Curve]) -> None:
    series = {system: curve.points for system, curve in curves.items()}
    plots.draw_lines(axes, series, _COLOURS, labels=False)
    axes.axhline(LATENCY, color=plots.GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_ylim(0, _TOP_LATENCY)
    axes.set_xlim(left=0)


def _legend(figure: Figure, axes: Axes, names: list[str]) -> None:
    figure.legend(
        axes.get_lines()[: len(names)],
        names,
        loc="outside lower center",
        ncols=len(names),
        fontsize=9,
        columnspacing=1.2,
    )


def _savings(findings: Findings, path: Path) -> None:
    methods = list(dict.fromkeys(method for method, _ in findings.savings))
    titles = {"parallel": "parallel sampling", "beam": "beam search"}
    colours = {"ShareGPT": plots.BLUE, "Alpaca": plots.ORANGE}
    with plots.picture(path, len(methods)) as (_, all_axes):
        for axes, method in zip(all_axes, methods, strict=True):
            series = {
                workload: [(float(width), 100 * saving) for width, saving in by_width.items()]
                for (of, workload), by_width in findings.savings.items()
                if of == method
            }
            plots.draw_lines(axes, series, colours)
            axes.set_title(titles[method])
            axes.set_xlabel("sequences of a request")
            axes.set_xticks(sorted({x for points in series.values() for x, _ in points}))
            axes.set_xlim(right=axes.get_xlim()[1] + 1.1)
            axes.set_ylim(bottom=0)
        all_axes[0].set_ylabel("% of blocks saved")


def _block_sizes(findings: Findings, path: Path) -> None:
    colours = {"ShareGPT": plots.BLUE, "Alpaca": plots.ORANGE}
    with plots.picture(path, 2) as (_, (memory, latency)):
        sizes = findings.block_sizes.items()
        states = {
            name: [(float(size.block_size), 100 * size.utilization) for size in found]
            for name, found in sizes
        }
        speed = {
            name: [(float(size.block_size), size.latency) for size in found]
            for name, found in sizes
        }
        plots.draw_lines(memory, states, colours)
        plots.draw_lines(latency, speed, colours)
        memory.set_title("% of held memory with token states")
        latency.set_title("mean latency, s/token")
        memory.set_ylim(0, 100)
        latency.set_ylim(bottom=0)
        for axes in (memory, latency):
            axes.set_xscale("log", base=2)
            axes.set_xticks([size for size, _ in next(iter(states.values()))])
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlim(right=axes.get_xlim()[1] * 4)
            axes.set_xlabel("block size, tokens")


def _batches(findings: Findings, path: Path) -> None:
    with plots.picture(path, len(findings.plain), 2.6) as (_, all_axes):
        for index, (workload, curves) in enumerate(findings.plain.items()):
            axes = all_axes[index]
            running = {system: curve.saturated.running for system, curve in curves.items()}
            plots.draw_bars(axes, running, _COLOURS)
            axes.set_title(workload)
            if index:
                axes.set_yticklabels([])
        all_axes[len(all_axes) // 2].set_xlabel("requests at once")
