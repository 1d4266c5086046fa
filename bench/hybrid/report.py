"""Tables, figures and the picture of the rules that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from bench.common.figures import numbers_table
from bench.hybrid.comparison import POOLS, Comparison
from bench.hybrid.rules.policies import (
    FUTURE,
    MARCONI,
    MARCONI_BY_RECENCY,
    OURS,
    POLICIES,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES: Final[Mapping[str, str]] = {
    "found_ratio_marconi_chats": (
        "tokens of prompts that ours finds, over Marconi's, at the pool where Marconi finds half "
        "of what can be found: chats, with and without reasoning, both models; the least of them"
    ),
    "found_ratio_marconi_agents": "the same of the agents' loops",
    "found_ratio_marconi_mooncake": "the same of Mooncake's conversations",
    "found_ratio_marconi_engine_chats": (
        "tokens of prompts that the engine's own blocks serve there, over Marconi's: of the chats"
    ),
    "found_ratio_marconi_engine_agents": "the same of the agents' loops",
    "ttft_p95_ratio_marconi": (
        "95th percentile of the time of the first token, ours over Marconi's, at these pools of "
        "chats and agents; the greatest of them"
    ),
    "ttft_p95_ratio_marconi_mooncake": "the same of Mooncake's conversations",
    "found_ratio_future_chats": (
        "tokens that the rule that knows the future finds there, over Marconi's; the least"
    ),
    "found_ratio_future_agents": "the same of the agents' loops",
    "found_ratio_future_mooncake": "the same of Mooncake's conversations",
}
_PART: Final = {"Mooncake's conversations": "mooncake", "agents": "agents"}
_CHATS: Final = "chats"


def figures(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The worst of the models and variants of each kind of trace."""
    found: dict[str, float] = {}
    slowest = {True: 0.0, False: 0.0}
    for one in comparisons:
        part = _PART.get(one.tree.trace.name, _CHATS)
        ratios = {
            f"found_ratio_marconi_{part}": one.halfway.found_ratio,
            f"found_ratio_future_{part}": one.halfway.future_ratio,
        }
        by_engine = f"found_ratio_marconi_engine_{part}"
        if one.halfway.engine_ratio is not None and by_engine in FIGURES:
            ratios[by_engine] = one.halfway.engine_ratio
        for name, ratio in ratios.items():
            found[name] = min(found.get(name, ratio), ratio)
        declared = part != "mooncake"
        slowest[declared] = max(slowest[declared], one.halfway.p95_ratio)
    found["ttft_p95_ratio_marconi"] = slowest[True]
    found["ttft_p95_ratio_marconi_mooncake"] = slowest[False]
    return found


def tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """A table a trace and model, and one of the pools where Marconi finds half."""
    return [_halfways(comparisons), *map(_outcomes, comparisons)]


def _halfways(comparisons: Sequence[Comparison]) -> Table:
    table = numbers_table(
        "where Marconi finds half of what can be found",
        "trace, model",
        "pool",
        "Marconi",
        "ours",
        "the engine",
        "the future",
        "ours over Marconi",
        "the engine over Marconi",
        "P95 over Marconi's",
    )
    for one in comparisons:
        at, most = one.halfway, one.tree.findable
        found = at.marconi, at.ours, at.engine, at.future
        shares = ("" if each is None else f"{100 * each.found / most:.1f} %" for each in found)
        table.add_row(
            f"{one.tree.trace.name}, {one.shape.name}",
            f"{at.pool:.4f}",
            *shares,
            f"{at.found_ratio:.2f}x",
            "" if at.engine_ratio is None else f"{at.engine_ratio:.2f}x",
            f"{at.p95_ratio:.2f}x",
        )
    return table


def _outcomes(one: Comparison) -> Table:
    tree = one.tree
    total = tree.touched_bytes(one.shape) / 1e9
    table = numbers_table(
        f"{tree.trace.name} ({tree.trace.source}), {one.shape.name}: "
        f"{len(tree.served):,} requests touch {total:,.0f} GB; "
        f"{100 * tree.findable / tree.prompt_tokens:.1f} % of their tokens can be found",
        "rule",
        *(f"pool {pool:g}" for pool in POOLS),
    )
    table.caption = "of what can be found, and seconds to the first token: mean, 95th percentile"
    for policy in POLICIES:
        cells = (one.outcomes[policy, pool] for pool in POOLS)
        table.add_row(
            policy,
            *(
                f"{100 * each.found / tree.findable:.1f} %  {each.mean:.3g}  {each.p95:.3g}"
                for each in cells
            ),
        )
    return table


def draw(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Tokens found over the size of the pool: a line a rule, axes a trace."""
    # matplotlib takes a while to be imported, and is not needed for tables.
    from bench.common import plots

    colours = {
        "every block": plots.LIGHT_GREY,
        "every 8 blocks": plots.GREY,
        "blocks of 528": plots.SKY,
        "last block only": plots.PURPLE,
        MARCONI_BY_RECENCY: plots.ORANGE,
        MARCONI: plots.VERMILION,
        OURS: plots.BLUE,
        FUTURE: plots.INK,
    }
    with plots.picture(path, columns=len(comparisons), height_inches=3.6, share_y=True) as (
        figure,
        all_axes,
    ):
        for axes, one in zip(all_axes, comparisons, strict=True):
            _draw_one(axes, one, colours)
        all_axes[0].set_ylabel("tokens found, % of what can be")
        figure.legend(
            *all_axes[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=5,
            fontsize=8.5,
        )


def _draw_one(axes: Axes, one: Comparison, colours: Mapping[str, str]) -> None:
    for policy, colour in colours.items():
        shares = [100 * one.outcomes[policy, pool].found / one.tree.findable for pool in POOLS]
        axes.plot(POOLS, shares, color=colour, marker="o", markersize=3, label=policy)
    axes.set_xscale("log", base=2)
    axes.set_xticks(POOLS, [f"1/{1 / pool:.0f}" if pool < 1 else "1" for pool in POOLS])
    axes.set_ylim(0, 102)
    axes.set_title(one.tree.trace.name.replace(" conversations", "").replace(", ", ",\n"))
    axes.set_xlabel("pool, of all")
