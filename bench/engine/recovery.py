"""How long a preempted request takes to resume: swapped, recomputed, or as the engine chooses.

A request with a context of each length is preempted by the product's own scheduler, whose pool then
loses its blocks to others; measured is from there to its next token, with the real model. What its
blocks hold does not matter to the time, so they are not computed first. `auto` chooses after the
calibration that the engine makes at start, corrected by what it has observed since; its time is
that of the way it chose. A second series varies how much of a context is lost at all: the rest is a
prefix that others hold, which recomputing finds again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from bench.common.figures import numbers_table
from bench.common.options import add_model, engine_config, set_threads
from bench.registry import Result

if TYPE_CHECKING:
    from bench.engine.resumption import Point

LENGTHS: Final = (64, 256, 1024, 4096, 8192)
BLOCK_SIZES: Final = (8, 16, 64, 256)
LOST: Final = (4, 16, 64, 256, 1024)
_BLOCK_SIZE: Final = 16
"""Of the figures by length, and of the contexts of which only a part is lost."""
_LONGEST_PART: Final = 4096
FIGURES: Final = {
    "auto_over_best_max": "time to resume by auto over that by the better way, the largest ratio",
    "calibration_seconds": f"what calibrating adds to the start, blocks of {_BLOCK_SIZE} tokens, s",
    **{
        f"{way}_ms_{length}": f"time to resume a context of {length} tokens by {way}, ms"
        for length in LENGTHS
        for way in ("swap", "recompute", "auto")
    },
    **{
        f"{way}_ms_lost_{lost}": f"the same where others hold all but {lost} tokens of a longer one"
        for lost in LOST
        for way in ("swap", "recompute", "auto")
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser, "device", "dtype", "threads")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--block-sizes", type=int, nargs="+", default=list(BLOCK_SIZES))
    parser.add_argument("--lost", type=int, nargs="+", default=list(LOST), help="lost tokens")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="draw recovery.png there")


def run(options: argparse.Namespace) -> Result:
    """Measure both ways back of every context, one after the other."""
    set_threads(options)
    from bench.engine.resumption import Bed

    whole: list[Point] = []
    parts: list[Point] = []
    calibration = 0.0
    for block_size in dict.fromkeys([*options.block_sizes, _BLOCK_SIZE]):
        bed = Bed(engine_config(options, block_size=block_size), max(options.lengths))
        whole += [bed.measure(length, length) for length in sorted(options.lengths)]
        if block_size == _BLOCK_SIZE:
            calibration = bed.calibration_seconds()
            context = min(max(options.lengths), _LONGEST_PART)
            lost = [tokens for tokens in sorted(options.lost) if tokens < context]
            parts = [bed.measure(context, tokens) for tokens in lost]
    if options.pictures is not None:
        _draw(options.pictures / "recovery.png", whole, parts)
    tables = [
        _table("time to resume: the whole context is lost", whole),
        _table("time to resume: others hold all but the lost tokens", parts),
    ]
    found = {"compute_dtype": bed.parts.info.dtype}
    return Result(_figures(whole, parts, calibration), tables, found)


def _figures(
    whole: Sequence[Point], parts: Sequence[Point], calibration: float
) -> dict[str, float]:
    figures = {
        "auto_over_best_max": max(point.auto_over_best for point in [*whole, *parts]),
        "calibration_seconds": calibration,
    }
    rows = [(f"{point.length}", point) for point in whole if point.block_size == _BLOCK_SIZE]
    rows += [(f"lost_{point.lost}", point) for point in parts]
    for name, point in rows:
        figures[f"swap_ms_{name}"] = 1000 * point.seconds["swap"]
        figures[f"recompute_ms_{name}"] = 1000 * point.seconds["recompute"]
        figures[f"auto_ms_{name}"] = 1000 * point.auto
    return figures


def _table(title: str, points: Sequence[Point]) -> Table:
    columns = ("context", "lost", "swap ms", "recompute ms", "auto", "over best")
    table = numbers_table(title, "block size", *columns)
    for point in points:
        table.add_row(
            str(point.block_size),
            str(point.length),
            str(point.lost),
            f"{1000 * point.seconds['swap']:.1f}",
            f"{1000 * point.seconds['recompute']:.1f}",
            point.chosen,
            f"{point.auto_over_best:.2f}",
        )
    return table


def _draw(path: Path, whole: Sequence[Point], parts: Sequence[Point]) -> None:
    """Both ways over what is lost, and rings around what `auto` chose."""
    from bench.common.plots import BLUE, INK, ORANGE, VERMILION, draw_lines, picture

    path.parent.mkdir(parents=True, exist_ok=True)
    with picture(path, columns=2) as (_, axes):
        chosen = [point for point in whole if point.block_size == _BLOCK_SIZE]
        for panel, points, title in (
            (axes[0], chosen, "the whole context is lost"),
            (axes[1], parts, "others hold a prefix"),
        ):
            series = {
                way: [(point.lost, 1000 * point.seconds[way]) for point in points]
                for way in ("swap", "recompute")
            }
            draw_lines(panel, series, {"swap": BLUE, "recompute": ORANGE})
            panel.plot(
                [point.lost for point in points],
                [1000 * point.auto for point in points],
                linestyle="",
                marker="o",
                markersize=9,
                markerfacecolor="none",
                color=INK,
            )
            middle = crossing(points)
            if middle is not None:
                panel.axvline(middle, color=VERMILION, linestyle=":")
            panel.set(
                xscale="log", yscale="log", title=title, xlabel="lost tokens", ylabel="ms to resume"
            )


def crossing(points: Sequence[Point]) -> float | None:
    """Where the two ways take as long, on a line between neighbours in logarithmic scales."""
    for before, after in pairwise(points):
        low, high = (
            log(point.seconds["swap"] / point.seconds["recompute"]) for point in (before, after)
        )
        if low * high < 0:
            share = low / (low - high)
            return float(before.lost * (after.lost / before.lost) ** share)
    return None
