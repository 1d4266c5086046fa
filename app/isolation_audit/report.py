"""An audit as a document for a machine and as a table for a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from app.isolation_audit.findings import CONTROL_ALPHA, Comparison, Finding, Verdict, overall
from app.isolation_audit.observing import CHANNELS, Feature, Value

EXIT_STATUS: Final[dict[Verdict, int]] = {"clean": 0, "leak": 1, "cannot tell": 2}
_STYLES: Final[dict[Verdict, str]] = {"clean": "green", "leak": "bold red", "cannot tell": "yellow"}
_MEANING: Final[dict[Verdict, str]] = {
    "clean": "nothing shows a tenant what its neighbour has sent, where it shows a tenant its own",
    "leak": "a tenant can tell what its neighbour has sent",
    "cannot tell": "some channel shows a tenant nothing of its own either, so it proves nothing",
}


@dataclass(frozen=True)
class Report:
    """What an audit has found, and how."""

    parameters: dict[str, Any]
    findings: Sequence[Finding]

    @property
    def verdict(self) -> Verdict:
        """Of the server as a whole; never `silent`."""
        return overall(self.findings)

    @property
    def p_min_neighbour(self) -> float:
        """The smallest corrected p-value of what a neighbour sees; 1 if all is silent."""
        return min((one.neighbour.corrected_p for one in self.findings if one.neighbour), default=1)

    @property
    def p_max_control(self) -> float:
        """The largest of what a tenant sees of its own; 1 if all is silent."""
        return max((one.control.corrected_p for one in self.findings if one.control), default=1)


def document(report: Report) -> dict[str, Any]:
    """For machines."""
    return {
        "verdict": report.verdict,
        "p_min_neighbour": report.p_min_neighbour,
        "p_max_control": report.p_max_control,
        "parameters": report.parameters,
        "channels": {
            finding.channel: {
                "verdict": finding.verdict,
                "neighbour": _compared(finding.neighbour),
                "control": _compared(finding.control),
            }
            for finding in report.findings
        },
    }


def table(report: Report) -> Table:
    """For readers: a row for each channel, and the verdict below."""
    found = Table(title=f"audit of {report.parameters['url']}", title_justify="left")
    for heading in (
        "channel",
        "verdict",
        "neighbour: p",
        "sent / fresh",
        "control: p",
        "own / fresh",
    ):
        found.add_column(heading, overflow="fold")
    for finding in report.findings:
        style = _STYLES.get(finding.verdict, "dim")
        cells = [*_cells(finding.neighbour), *_cells(finding.control)]
        found.add_row(finding.channel, f"[{style}]{finding.verdict}[/]", *cells)
    verdict = report.verdict
    found.caption = f"{verdict}: {_MEANING[verdict]}"
    found.caption_justify = "left"
    return found


def legend(report: Report) -> list[str]:
    """How to read the table, and what each of its channels looks at."""
    size, alpha = report.parameters["samples"], report.parameters["alpha"]
    lines = [
        f"{size} samples a side; p-values corrected for all channels (Holm). A leak is p <= {alpha}"
        f" for the neighbour; the control has to have p < {CONTROL_ALPHA}."
    ]
    return lines + [f"{one.channel}: {CHANNELS[one.channel]}" for one in report.findings]


def shown(feature: Feature, values: Sequence[Value]) -> str:
    """Values in short: the median of numbers, the most frequent of texts."""
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) == len(values):
        middle = median(numbers)
        return f"{middle * 1000:.1f} ms" if feature.is_seconds else f"{middle:g}"
    text, count = Counter(str(value) for value in values).most_common(1)[0]
    return f"{text} ({count} of {len(values)})"


def _cells(compared: Comparison | None) -> tuple[str, str]:
    if compared is None:
        return "-", "-"
    sides = (shown(compared.feature, side) for side in (compared.sent, compared.fresh))
    values = escape(f"{compared.feature.label}: {' / '.join(sides)}")
    return f"{compared.corrected_p:.2g}", values


def _compared(compared: Comparison | None) -> dict[str, Any] | None:
    if compared is None:
        return None
    return {
        "feature": compared.feature.name,
        "p": compared.p,
        "p_corrected": compared.corrected_p,
        "sent": shown(compared.feature, compared.sent),
        "fresh": shown(compared.feature, compared.fresh),
    }
