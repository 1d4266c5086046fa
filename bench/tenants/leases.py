"""Whether leased prompts are found behind a neighbour's flood, and what leases cost.

Three parts. Each trial of the first is one tenant's prompt and then another tenant's flood of new
prompts, ten times what the pool holds, many at once; then the prompt is looked up. It runs through
the product's own scheduler and pool, and only the model is made up, since what is found does not
depend on it: with a lease, and in turns without one. The second times first tokens behind a leased
prompt right after a flood, and once more right after that (warm), on a real model. The third serves
the load of `bench serve` (shared system prompts) to that model, with and without leases in turns.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from statistics import median
from typing import Final

from rich.table import Table

from bench.common.engines import AnyToken, finish, scripted_core
from bench.common.figures import percentile
from bench.common.options import add_model, engine_config, set_threads
from bench.registry import Result
from bench.tenants.leased import LEASE, LeasedModel, draw_prompt, flood, request
from engine.api import CachePolicy

FIGURES: Final = {
    "leased_found": "trials in which all of a leased prompt was found behind the flood",
    "plain_found": "the same without a lease",
    "ttft_ms_p99_leased": "time to the first token behind a leased prompt after a flood, ms",
    "ttft_ms_p99_warm": "the same for the same prompt right after it was used, ms",
    "ttft_ratio_leased_over_warm": "the first over the second",
    "throughput_ratio": "output tokens a second with leases over those without, median of rounds",
}
_BLOCK: Final = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--trials", type=int, default=200, help="with and without a lease each")
    parser.add_argument("--prompt-tokens", type=int, default=2048, help="of a leased prompt")
    parser.add_argument("--pool-blocks", type=int, default=512, help="in a trial")
    parser.add_argument("--flood", type=float, default=10.0, help="tokens, in pools")
    add_model(parser, "threads")
    parser.add_argument("--kv-mib", type=int, default=512, help="KV memory of the timed model")
    parser.add_argument("--prompts", type=int, default=8, help="leased ones behind a timed flood")
    parser.add_argument("--floods", type=int, default=8, help="behind each of which they are timed")
    parser.add_argument("--rounds", type=int, default=25, help="of the load, both ways")


def run(options: argparse.Namespace) -> Result:
    """Look for prompts behind floods, then time a real model."""
    found = [
        sum(_is_found(options, policy, trial) for trial in range(options.trials))
        for policy in (LEASE, CachePolicy())
    ]
    set_threads(options)
    config = engine_config(options, kv_memory_bytes=options.kv_mib << 20, lease_share=1.0)
    model = LeasedModel(config, options.prompt_tokens, options.prompts)
    leased, warm = model.first_tokens(options.floods)
    ratios = model.throughput_ratios(options.rounds)
    figures = {
        "leased_found": float(found[0]),
        "plain_found": float(found[1]),
        "ttft_ms_p99_leased": 1e3 * percentile(leased, 99),
        "ttft_ms_p99_warm": 1e3 * percentile(warm, 99),
        "ttft_ratio_leased_over_warm": percentile(leased, 99) / percentile(warm, 99),
        "throughput_ratio": median(ratios),
    }
    table = _table(options.trials, found, leased, warm, ratios)
    return Result(figures, [table], {"samples": len(leased)})


def _is_found(options: argparse.Namespace, policy: CachePolicy, trial: int) -> bool:
    """Whether a prompt is found whole behind a flood."""
    draw = random.Random(trial)
    core = scripted_core(AnyToken(), options.pool_blocks * _BLOCK, _BLOCK)
    prompt = draw_prompt(draw, options.prompt_tokens)
    core.submit(request("first", "kept", prompt, 1, policy))
    finish(core)
    flood(core, draw, int(options.flood * options.pool_blocks * _BLOCK))
    core.submit(request("again", "kept", [*prompt, 1], 1, CachePolicy()))
    before = core.stats().cached_tokens
    finish(core)
    return core.stats().cached_tokens - before == len(prompt)


def _table(
    trials: int,
    found: Sequence[int],
    leased: Sequence[float],
    warm: Sequence[float],
    ratios: Sequence[float],
) -> Table:
    table = Table("prompt", "found", "TTFT p50", "p99", title="behind a flood")
    for name, count, times in (("leased", found[0], leased), ("plain", found[1], ())):
        table.add_row(name, f"{count} of {trials}", *_milliseconds(times))
    table.add_row("warm", "", *_milliseconds(warm))
    table.caption = (
        f"output tokens a second with leases over without: {median(ratios):.3f} "
        f"(half of the rounds: {percentile(ratios, 25):.3f} to {percentile(ratios, 75):.3f})"
    )
    return table


def _milliseconds(times: Sequence[float]) -> list[str]:
    return [f"{1e3 * percentile(times, one):.1f} ms" for one in (50, 99)] if times else ["", ""]
