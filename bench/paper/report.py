"""Everything that was measured, as figures for a machine and a table for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from bench.paper.blocks import BlockSize
from bench.paper.reality import Reality
from bench.paper.simulation import LATENCIES, LATENCY, Curve
from bench.paper.systems import FASTER_TRANSFORMER, GENERATE, MAX, ORACLE, PARTYWALL, POW2

KEYS = {
    PARTYWALL: "ours",
    MAX: "orca_max",
    POW2: "orca_pow2",
    ORACLE: "orca_oracle",
    FASTER_TRANSFORMER: "ft",
    GENERATE: "generate",
}
"""Systems as the names of figures have them."""


@dataclass(slots=True)
class Findings:
    """What the paper's figures show; a part that was not asked for is empty."""

    plain: dict[str, dict[str, Curve]] = field(default_factory=dict)
    """(a), (b), (g): by workload and system."""
    prefixes: dict[int, dict[str, Curve]] = field(default_factory=dict)
    """(d): by tokens of the prefix and system."""
    chat: dict[str, Curve] = field(default_factory=dict)
    """(e): by system."""
    block_sizes: dict[str, list[BlockSize]] = field(default_factory=dict)
    """(f): by workload."""
    savings: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    """(c): by method and workload, then by how many sequences a request has."""
    prompt_blocks: tuple[int, int] | None = None
    """Blocks that a prompt shared by 100 requests holds, and that 100 prompts would."""
    reality: Reality | None = None

    def figures(self) -> dict[str, float]:
        """All figures by name. Those without a suffix are on ShareGPT lengths."""
        found: dict[str, float] = {}
        for workload, curves in self.plain.items():
            suffix = "" if workload == "ShareGPT" else f"_{workload.lower()}"
            for system, curve in curves.items():
                key = f"{KEYS[system]}{suffix}"
                found[f"utilization_{key}"] = curve.saturated.memory.utilization
                found[f"batched_{key}"] = curve.saturated.running
                found[f"sustained_rate_{key}"] = curve.sustained()
                if system != PARTYWALL:
                    found[f"rate_over_{key}"] = over(curves, system)
        for tokens, curves in self.prefixes.items():
            found[f"shared_prefix_{tokens}"] = over(curves, ORACLE)
        for system in self.chat:
            if system in (ORACLE, POW2, MAX):
                found[f"chat_over_{KEYS[system]}"] = over(self.chat, system)
        for workload, sizes in self.block_sizes.items():
            for size in sizes:
                name = f"utilization_block_{size.block_size}_{workload.lower()}"
                found[name] = size.utilization
        for (method, workload), by_width in self.savings.items():
            suffix = "" if workload == "ShareGPT" else f"_{workload.lower()}"
            for width, saving in by_width.items():
                found[f"saving_{method}_{width}{suffix}"] = saving
        if self.prompt_blocks is not None:
            found["prompt_blocks_100_requests"] = self.prompt_blocks[0]
        if self.reality is not None:
            found["sim_vs_real_error"] = self.reality.error
            found["sim_agrees_in_order"] = float(self.reality.agrees_in_order)
            found["cost_model_error"] = self.reality.fit.error_mean
        return found


def over(curves: dict[str, Curve], system: str, latency: float | None = None) -> float:
    """The rate that Partywall sustains over that of `system`, at the same latency."""
    ours, other = (
        curves[name].sustained() if latency is None else curves[name].sustained(latency)
        for name in (PARTYWALL, system)
    )
    return ours / other if other else 0.0


Rows = Iterator[Sequence[str]]
CATEGORIES = {
    "token states": "token_states",
    "reserved": "reserved",
    "internal fragmentation": "internal",
    "external fragmentation": "external",
    "free": "free",
}
_PAPER_UTILIZATION = {PARTYWALL: 96.3, MAX: 20.4, POW2: 26.8, ORACLE: 38.2}
_PAPER_RATES = {ORACLE: "1.7-2.7x", MAX: "2.7-8x", FASTER_TRANSFORMER: "up to 22x"}
_PAPER_SAVINGS = {
    ("parallel", "Alpaca"): "6.1-9.8",
    ("parallel", "ShareGPT"): "16.2-30.5",
    ("beam", "Alpaca"): "37.6-55.2",
    ("beam", "ShareGPT"): "44.3-66.3",
}
_PAPER_PREFIXES = {80: "1.67x", 341: "3.58x"}
_PAPER_BATCHES = {
    ("ShareGPT", MAX): 7.0,
    ("ShareGPT", POW2): 9.8,
    ("ShareGPT", ORACLE): 13.6,
    ("ShareGPT", PARTYWALL): 30.4,
    ("Alpaca", MAX): 7.0,
    ("Alpaca", POW2): 43.2,
    ("Alpaca", ORACLE): 72.8,
    ("Alpaca", PARTYWALL): 132.4,
}


def _memory(findings: Findings) -> Rows:
    for workload, curves in findings.plain.items():
        for system, curve in curves.items():
            use = curve.saturated.memory
            shares = [100 * getattr(use, field) / use.total for field in CATEGORIES.values()]
            paper = _PAPER_UTILIZATION.get(system, "") if workload == "ShareGPT" else ""
            cells = (f"{share:.1f}" for share in (*shares, 100 * use.utilization))
            yield workload, system, *cells, f"{paper}"


def _rates(findings: Findings) -> Rows:
    for workload, curves in findings.plain.items():
        for system, curve in curves.items():
            ratios = (
                "" if system == PARTYWALL else f"{over(curves, system, latency):.2f}x"
                for latency in LATENCIES
            )
            paper = _PAPER_RATES.get(system, "")
            yield workload, system, f"{curve.sustained():.3g}", *ratios, paper


def _savings(findings: Findings) -> Rows:
    for (method, workload), by_width in findings.savings.items():
        savings = (f"{100 * saving:.1f}" for saving in by_width.values())
        yield method, workload, *savings, _PAPER_SAVINGS[method, workload]


def _prefixes(findings: Findings) -> Rows:
    for tokens, curves in findings.prefixes.items():
        for system, curve in curves.items():
            is_ours = system == PARTYWALL
            ratio = f"{over(curves, ORACLE):.2f}x" if is_ours else ""
            paper = _PAPER_PREFIXES[tokens] if is_ours else ""
            yield f"{tokens}", system, f"{curve.sustained():.3g}", ratio, paper


def _chats(findings: Findings) -> Rows:
    for system, curve in findings.chat.items():
        ratio = "" if system == PARTYWALL else f"{over(findings.chat, system):.2f}x"
        paper = "2x" if system in (ORACLE, POW2, MAX) else ""
        yield system, f"{curve.sustained():.3g}", ratio, paper


def _block_sizes(findings: Findings) -> Rows:
    for workload, sizes in findings.block_sizes.items():
        for size in sizes:
            shares = f"{100 * size.utilization:.1f}", f"{size.running:.1f}"
            yield workload, f"{size.block_size}", *shares, f"{1000 * size.latency:.0f}"


def _batches(findings: Findings) -> Rows:
    for workload, curves in findings.plain.items():
        for system, curve in curves.items():
            paper = _PAPER_BATCHES.get((workload, system), "")
            yield workload, system, f"{curve.saturated.running:.1f}", f"{paper}"


def _real(reality: Reality) -> Rows:
    for system, measured in reality.measured.items():
        simulated = reality.simulated[system]
        off = (simulated - measured) / measured
        yield system, f"{measured:.3f}", f"{simulated:.3f}", f"{off:+.1%}"


_TABLES: dict[str, tuple[Callable[[Findings], Rows], str, Sequence[str], str]] = {
    "a": (
        _memory,
        "KV memory by what it is used for, % of all slots, under more load than fits",
        (
            *("lengths", "system"),
            *(name.partition(" ")[0] for name in CATEGORIES),
            *("token/held", "paper"),
        ),
        "Orca's reservations are exact for Azure's long prompts: hence its good use there",
    ),
    "b": (
        _rates,
        f"Requests/s sustained at a mean of {LATENCY:g} s/token; Partywall's over each system's, "
        "there and at more",
        ("lengths", "system", "req/s", *(f"{one:g} s" for one in LATENCIES), "paper"),
        "Azure's prompts are long and its answers short: little is reserved in vain, and steps of "
        "prefill cost all systems the same",
    ),
    "c": (
        _savings,
        "Blocks saved by sharing within a request, %, by its number of sequences",
        ("method", "lengths", "2", "4", "6", "paper"),
        "Two sequences can save no more than half, and here save a little less than the paper's: "
        "the spread of prompt lengths is synthetic, and of a short request most blocks are the "
        "ones being written. Beams part and merge by the small model's scores, which keep them "
        "closer together than OPT's",
    ),
    "d": (
        _prefixes,
        f"Translations behind a shared prefix, requests/s at {LATENCY:g} s/token",
        ("prefix", "system", "req/s", "over Orca (Oracle)", "paper"),
        "",
    ),
    "e": (
        _chats,
        f"Chats with growing history, its last 1,024 tokens, requests/s at {LATENCY:g} s/token",
        ("system", "req/s", "Partywall's over it", "paper"),
        "The paper's prompts are nearly all cut to 1,024 tokens; these are shorter, and so are "
        "Orca's reservations",
    ),
    "f": (
        _block_sizes,
        "Block size: memory when full, and latency at the rate that 16 sustains",
        ("lengths", "block size", "token/held, %", "requests at once", "ms/token"),
        "How fast a kernel reads blocks of each size is no part of the simulation",
    ),
    "g": (
        _batches,
        "Requests batched at once, under more load than fits",
        ("lengths", "system", "requests at once", "paper"),
        "",
    ),
}
"""By the paper's figures: rows, title, heads and caption."""


def tables(findings: Findings, wanted: str) -> list[Table]:
    """The tables of what was measured, and only of figures that are wanted."""
    found = []
    for letter in wanted:
        rows, title, heads, caption = _TABLES[letter]
        if letter == "d" and findings.prompt_blocks is not None:
            held, unshared = findings.prompt_blocks
            caption = (
                f"100 requests over one system prompt of 2,048 tokens hold {held} blocks of it; "
                f"without sharing {unshared:,}"
            )
        found.append(_table(f"({letter}) {title}", heads, rows(findings), caption))
    if findings.reality is not None:
        reality, fit = findings.reality, findings.reality.fit
        title = f"(b) for real: {reality.num_requests} requests at {reality.rate:.2f}/s"
        heads = ("system", "measured, s/token", "simulated", "off by")
        caption = (
            f"Cost of a step: mean error {fit.error_mean:.1%}, of all steps together "
            f"{fit.error_total:.1%}; {fit.cost}"
        )
        found.append(_table(title, heads, _real(reality), caption))
    return [table for table in found if table.row_count]


def _table(title: str, heads: Sequence[str], rows: Rows, caption: str) -> Table:
    """A table whose first columns keep their names whole."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for place, head in enumerate(heads):
        table.add_column(head, no_wrap=place < 2)
    for row in rows:
        table.add_row(*row)
    return table
