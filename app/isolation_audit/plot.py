"""The picture of an audit: a self-contained SVG, the distributions of each channel side by side.

A row for each channel that tells numbers: what the neighbour sees on the left, the control on the
right. Curves that lie on each other show nothing to whoever measures. The colours are two of Okabe
and Ito's, which colour-blind readers tell apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from app.isolation_audit.findings import Comparison, Finding
from app.isolation_audit.report import Report

_SENT, _FRESH, _INK, _GREY, _LIGHT = "#D55E00", "#0072B2", "#222222", "#777777", "#E6E6E6"
_WIDTH, _PANEL, _HEIGHT = 860, 370, 130
_TOP, _LEFT, _GAP, _ROW = 64, 48, 40, 196
_COLUMNS: Final = {"neighbour": 0, "control": 1}
_POINTS: Final = 160
_SHOWN_SHARE: Final = 0.98
"""Of the samples. The slowest few would leave the others no room."""


def picture(report: Report) -> str:
    """The text of an SVG."""
    drawn = [(finding, sides) for finding in report.findings if (sides := _sides(finding))]
    height = _TOP + _ROW * len(drawn)
    title = f"audit of {report.parameters['url']}: {report.verdict}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 24, title, size=15, weight="bold"),
        _text(_LEFT, 44, "what a tenant has just sent", colour=_SENT),
        _text(_LEFT + 180, 44, "what nobody has sent", colour=_FRESH),
        _text(_LEFT + 330, 44, "the share of probes that come up to a value", colour=_GREY),
    ]
    for row, (finding, sides) in enumerate(drawn):
        y = _TOP + _ROW * row
        for prober, compared in sides.items():
            x = _LEFT + _COLUMNS[prober] * (_PANEL + _GAP)
            heading = f"{finding.channel}, {prober}: p = {compared.corrected_p:.2g}"
            lines += [_text(x, y + 16, heading, weight="bold"), *_panel(compared, x, y + 26)]
    return "\n".join([*lines, "</svg>\n"])


def _sides(finding: Finding) -> dict[str, Comparison]:
    """The comparisons of numbers, by who probes."""
    both = {"neighbour": finding.neighbour, "control": finding.control}
    return {
        prober: compared
        for prober, compared in both.items()
        if compared is not None and _numbers(compared.sent) and _numbers(compared.fresh)
    }


def _panel(compared: Comparison, x: float, y: float) -> Iterator[str]:
    """Both curves, with the values at the ends of their axis."""
    sent, fresh = _numbers(compared.sent), _numbers(compared.fresh)
    pooled = sorted([*sent, *fresh])
    low, high = pooled[0], pooled[int(_SHOWN_SHARE * (len(pooled) - 1))]
    high = high if high > low else low + 1
    for share in (0.0, 0.5, 1.0):
        at = y + _HEIGHT * (1 - share)
        yield f'<path d="M{x} {at:.1f}h{_PANEL}" stroke="{_LIGHT}"/>'
        yield _text(x - 6, at + 4, f"{share:.0%}", colour=_GREY, anchor="end", size=10)
    for values, colour in ((fresh, _FRESH), (sent, _SENT)):
        path = _curve(values, low, high, x, y)
        yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    seconds = compared.feature.is_seconds
    low_text, high_text = (f"{one * 1000:.1f} ms" if seconds else f"{one:g}" for one in (low, high))
    below = y + _HEIGHT + 16
    yield _text(x, below, low_text, colour=_GREY, size=10)
    yield _text(
        x + _PANEL / 2, below, compared.feature.label, colour=_GREY, anchor="middle", size=10
    )
    yield _text(x + _PANEL, below, high_text, colour=_GREY, anchor="end", size=10)


def _curve(values: Sequence[float], low: float, high: float, x: float, y: float) -> str:
    """The share of values that are not larger, from `low` to `high`, as steps."""
    path = f"M{x} {y + _HEIGHT}"
    for point in range(_POINTS + 1):
        along = point / _POINTS
        share = bisect_right(values, low + (high - low) * along) / len(values)
        path += f"H{x + _PANEL * along:.1f}V{y + _HEIGHT * (1 - share):.1f}"
    return path


def _numbers(values: Sequence[float | str]) -> list[float]:
    return sorted(value for value in values if not isinstance(value, str))


def _text(
    x: float,
    y: float,
    text: str,
    *,
    colour: str = _INK,
    size: int = 12,
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
