"""What formats cost: masks, the first one, and tokens a second with schemas over those without.

One engine decodes batches of which each sequence is held to a schema of its own, and batches of the
same prompts that are free, in turns; all write as many tokens, in arrays too long to end before.
A ratio is the median over the rounds. A mask's time is what the engine's loop spends to find which
tokens a row may draw. A first mask's is from a request's arrival to where it may be planned, for a
schema that nobody has sent before. Where xgrammar is installed, it and our library follow the
outputs once more, alone. With `--peers` the first of the batch sizes is asked of servers over HTTP,
one alive at a time, as in `bench peers`. With `--hostile` another tenant's stream is watched while
grammars that are meant to harm are sent, eight at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from bench.common.figures import numbers_table
from bench.common.options import add_model, engine_config, set_threads
from bench.formats.hostile import attack
from bench.formats.peers import compare
from bench.registry import Result
from engine.model.weights import resolve_model

if TYPE_CHECKING:  # it imports torch, which is to come after its environment
    from bench.formats.cases import StructuredBench

_OF_ENGINE: Final = {
    "mask_us_p50": "to find what a row may draw, us: median",
    "mask_us_p99": "the same: 99th percentile",
    "first_mask_ms": "from a request's arrival to its compiled grammar and first mask, ms: median",
    "tokens_per_s_ratio": "tokens/s with schemas over without, at the first of the batch sizes",
    "forced_ratio": "tokens/s of one answer: with what a schema forces drafted, over without",
}
_OF_LIBRARIES: Final = {
    "mask_us_p50_LIBRARY": "to take a token and find what may follow, alone, us: median",
    "mask_us_p99_LIBRARY": "the same: 99th percentile",
    "first_mask_ms_LIBRARY": "from a schema to its first mask, alone, ms: median",
    "refused_LIBRARY": "outputs that it did not let pass to their ends",
}
_OF_PEERS: Final = {
    "PEER_tokens_per_s_ratio": "tokens/s with schemas over HTTP: Partywall's over the peer's",
    "held_tokens_per_s_SERVER": "tokens/s with schemas; SERVER is `partywall` or a peer's name",
    "held_over_free_SERVER": "tokens/s with schemas over without, of that server",
}
_OF_HOSTILE: Final = {
    "hostile_stall_ms_max": "how much longer a neighbour's stream was held up than usual, at most",
    "plain_stall_ms_max": "the same beside as many requests that mean no harm",
    "hostile_gap_ms_usual": "between two deltas of that stream before, ms: median",
    "hostile_gap_ms_max_calm": "the same: the longest",
}
FIGURES: Final = _OF_ENGINE | _OF_LIBRARIES | _OF_PEERS | _OF_HOSTILE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser, "device", "dtype", "quantize", "threads")
    parser.add_argument("--speculation", default="lookup", choices=["off", "lookup"])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 1, 32], help="sequences")
    parser.add_argument("--tokens", type=int, default=96, help="that each sequence writes")
    parser.add_argument("--rounds", type=int, default=5, help="of all batches, both ways")
    peers = "also ask these over HTTP; see bench/peers/peers.example.toml"
    parser.add_argument("--peers", type=Path, metavar="FILE", help=peers)
    parser.add_argument("--peer-rounds", type=int, default=2, help="of all servers")
    hostile = "also send a service so many hostile ones beside a neighbour's stream"
    parser.add_argument("--hostile", type=int, default=0, metavar="COUNT", help=hostile)


def run(options: argparse.Namespace) -> Result:
    """Measure batches with and without schemas, in turns."""
    of_servers, by_servers = compare(options) if options.peers is not None else ({}, [])
    of_hostile, by_hostile = attack(options) if options.hostile else ({}, [])
    set_threads(options)
    from bench.formats.cases import StructuredBench

    # Nor may drafts be what an earlier round has said.
    config = engine_config(options, speculation=options.speculation, prefix_cache=False)
    bench = StructuredBench(config, options.tokens)
    figures, tables = _of_engine(bench, options)
    alone, table = _of_libraries(bench, resolve_model(options.model))
    figures |= alone | of_servers | of_hostile
    tables += [table, *by_servers, *by_hostile]
    return Result(figures, tables, {"compute_dtype": bench.dtype})


def _of_engine(
    bench: StructuredBench, options: argparse.Namespace
) -> tuple[dict[str, float], list[Table]]:
    found = bench.measure(options.batches, options.rounds)
    title = "tokens a second, free and held to schemas; medians of rounds"
    rates = numbers_table(title, "batch", "free", "held", "held / free")
    for batch, one in found.items():
        rates.add_row(str(batch), f"{one.plain:,.0f}", f"{one.rate:,.0f}", f"{one.ratio:.3f}")
    figures = {
        "mask_us_p50": bench.mask_us(50),
        "mask_us_p99": bench.mask_us(99),
        "first_mask_ms": bench.first_mask_ms,
        "tokens_per_s_ratio": found[options.batches[0]].ratio,
        "forced_ratio": bench.forced_ratio(options.rounds),
    }
    columns = ("mask, us: median", "99th percentile", "forced / not drafted")
    costs = numbers_table("what a schema takes, and gives", "first mask, ms", *columns)
    numbers = (figures[name] for name in ("first_mask_ms", "mask_us_p50", "mask_us_p99"))
    costs.add_row(*(f"{number:.1f}" for number in numbers), f"{figures['forced_ratio']:.3f}")
    return figures, [rates, costs]


def _of_libraries(bench: StructuredBench, folder: Path) -> tuple[dict[str, float], Table]:
    from bench.formats.cases import Begin, ours, walk, xgrammars

    columns = ("first mask, ms", "mask, us: median", "99th percentile", "refused")
    table = numbers_table("masks of the same outputs, alone", "library", *columns)
    figures: dict[str, float] = {}
    makers: dict[str, Callable[[], Begin]] = {
        "llguidance": lambda: ours(bench.vocabulary, bench.num_tokens),
        "xgrammar": lambda: xgrammars(folder, bench.vocab_size, bench.num_tokens),
    }
    for name, make in makers.items():
        try:
            found = walk(make(), bench.outputs)
        except ImportError:
            table.add_row(name, "is not installed")
            continue
        row = found.first_ms, found.mask_us(50), found.mask_us(99), float(found.num_refused)
        names = ("first_mask_ms", "mask_us_p50", "mask_us_p99", "refused")
        figures |= {f"{figure}_{name}": number for figure, number in zip(names, row, strict=True)}
        table.add_row(name, *(f"{number:,.1f}" for number in row))
    return figures, table
