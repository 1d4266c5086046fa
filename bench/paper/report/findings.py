"""Everything that was measured, as figures for a machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.paper.blocks import BlockSize
from bench.paper.curves import Curve
from bench.paper.reality import Reality
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
