"""One style for all pictures: colours that colour-blind readers tell apart, legible in a README.

The palette is that of Okabe and Ito ("Color universal design", 2008). Series are labelled where
they are, not in a legend, wherever there is room. Needs matplotlib (the extra `bench`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, GREY, LIGHT, INK = "#56B4E9", "#CC79A7", "#777777", "#EFEFEF", "#222222"
LIGHT_GREY = "#BBBBBB"
WIDTH_INCHES = 8.0
_DOTS_PER_INCH = 150
_PALETTE_COLOURS = 128
_LABELLED_PERCENT = 8.0
"""A palette makes the file a third as large."""
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}

Points = Sequence[tuple[float, float]]


@contextmanager
def picture(
    path: Path, columns: int = 1, height_inches: float = 3.2, share_y: bool = False
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with `columns` axes side by side, written to `path` as a PNG at the end."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False, sharey=share_y)
        yield figure, list(axes[0])
        drawn = BytesIO()
        figure.savefig(drawn, format="png", dpi=_DOTS_PER_INCH)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(_PALETTE_COLOURS).save(path, optimize=True)


def draw_lines(
    axes: Axes,
    series: Mapping[str, Points],
    colours: Mapping[str, str],
    *,
    labels: bool = True,
) -> None:
    """A line for each series, its name in its colour beside its last point that is visible."""
    for name, points in series.items():
        x, y = [point[0] for point in points], [point[1] for point in points]
        axes.plot(x, y, color=colours[name], marker="o", markersize=3.5)
        if labels and points:
            axes.annotate(
                name,
                points[-1],
                xytext=(5, 0),
                textcoords="offset points",
                color=colours[name],
                va="center",
                fontsize=9,
            )


def draw_stacks(
    axes: Axes,
    rows: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
) -> None:
    """A horizontal bar for each row, cut into its parts (in %), large parts with their number."""
    names = list(rows)
    lefts = [0.0] * len(names)
    for part, colour in colours.items():
        widths = [rows[name][part] for name in names]
        axes.barh(names, widths, left=lefts, color=colour, label=part, height=0.72)
        for index, width in enumerate(widths):
            if width >= _LABELLED_PERCENT:
                middle = lefts[index] + width / 2
                colour_of_text = "white" if colour in (BLUE, VERMILION, INK) else INK
                axes.text(
                    middle,
                    index,
                    f"{width:.0f}",
                    ha="center",
                    va="center",
                    color=colour_of_text,
                    fontsize=8.5,
                )
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def draw_bars(axes: Axes, values: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """A horizontal bar for each value, which stands at its end."""
    names = list(values)
    widths = list(values.values())
    axes.barh(names, widths, color=[colours[name] for name in names], height=0.72)
    for index, width in enumerate(widths):
        axes.annotate(
            f"{width:.1f}",
            (width, index),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(widths))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
