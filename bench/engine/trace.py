"""What share of a chat service's prompt blocks each eviction policy finds in the pool.

Every prompt of a trace is replayed through the product's own block pool, in order of arrival and
one at a time: it takes what it finds, computes the rest, and gives all of it back. Sizes are in the
trace's ids (512 tokens), each of which is expanded to the blocks that hold its tokens. Beside the
policies stands the optimum, which knows the future: whatever is needed furthest ahead goes first
(Belady, IBM Systems Journal 1966).
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Final, get_args

from rich.table import Table

from bench.common.traces import (
    MOONCAKE_TRACE,
    TOKENS_PER_ID,
    Conversations,
    Prompt,
    load_conversations,
)
from bench.registry import BenchError, Result
from engine.blocks.eviction.policy import Eviction
from engine.blocks.pool import BlockPool
from engine.config import EngineConfig

CAPACITIES: Final = (1_000, 3_000, 10_000, 30_000)

_OWNER: Final = "tenant"
_POLICIES: Final[tuple[Eviction, ...]] = get_args(Eviction)
_DEFAULT: Final = EngineConfig(model_path="").eviction


def _figure(policy: str, what: str) -> str:
    return what if policy == _DEFAULT else f"{policy}_{what}"


def _meanings() -> dict[str, str]:
    found = {}
    for policy in (*_POLICIES, "optimal"):
        for capacity in CAPACITIES:
            found[_figure(policy, f"hit_ratio_{capacity}")] = (
                f"blocks of prompts found by {policy}, of all, with room for {capacity:,} ids: 0..1"
            )
    found["unbounded_hit_ratio"] = "the same when nothing is ever evicted"
    for policy in _POLICIES:
        found[_figure(policy, "us_per_block")] = (
            f"CPU time of the pool for one block of a prompt with {policy}: found and acquired or "
            "allocated and registered, then released; microseconds"
        )
    return found


FIGURES: Final[Mapping[str, str]] = _meanings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--trace",
        type=Path,
        default=MOONCAKE_TRACE,
        help="prompts in Mooncake's format; where there is no such file, synthetic ones",
    )
    parser.add_argument("--block-size", type=int, default=128, help="tokens of a block")
    parser.add_argument("--seed", type=int, default=0, help="of synthetic prompts")


def run(options: argparse.Namespace) -> Result:
    """Replay every capacity, all policies in turn at each prompt."""
    if options.block_size < 1 or TOKENS_PER_ID % options.block_size:
        raise BenchError(f"--block-size: must divide {TOKENS_PER_ID}, the tokens of an id")
    found = load_conversations(options.trace, options.seed)
    blocks_per_id = TOKENS_PER_ID // options.block_size
    replays = {
        capacity: replay(
            found.prompts,
            {policy: BlockPool(capacity * blocks_per_id, policy) for policy in _POLICIES},
            blocks_per_id,
        )
        for capacity in CAPACITIES
    }
    optimal = {
        capacity: optimal_hits(found.prompts, capacity) / found.num_ids
        for capacity in (*CAPACITIES, found.num_ids)
    }
    figures = _figures(replays, optimal, unbounded=optimal[found.num_ids])
    reported = {
        "source": found.source,
        "requests": len(found.prompts),
        "ids": found.num_ids,
        "policy": _DEFAULT,
    }
    return Result(figures, [_table(figures, found)], reported)


@dataclass
class Replay:
    """What one pool did with a trace."""

    blocks: int = 0
    hits: int = 0
    seconds: float = 0.0

    @property
    def hit_ratio(self) -> float:
        """The part of all prompts' blocks that was found."""
        return self.hits / self.blocks

    @property
    def us_per_block(self) -> float:
        """CPU time spent in the pool for a block."""
        return self.seconds / self.blocks * 1e6


def replay(
    prompts: Sequence[Prompt], pools: Mapping[Eviction, BlockPool], blocks_per_id: int
) -> dict[Eviction, Replay]:
    """Send every prompt through each of `pools`, one prompt after the other.

    Raises `BenchError` for a prompt that a pool cannot hold.
    """
    replays = {policy: Replay() for policy in pools}
    keys = _key_maker(blocks_per_id)
    for number, prompt in enumerate(prompts, 1):
        chain = [key for one in prompt for key in keys(one)]
        for policy, pool in pools.items():
            if len(chain) > pool.num_blocks:
                raise BenchError(f"prompt {number} is longer than {pool.num_blocks} blocks")
            started = process_time()
            hits = _serve(pool, chain)
            replays[policy].seconds += process_time() - started
            replays[policy].blocks += len(chain)
            replays[policy].hits += hits
    for pool in pools.values():
        pool.check()
    return replays


def _serve(pool: BlockPool, chain: Sequence[bytes]) -> int:
    """What the scheduler does with the blocks of one prompt; returns how many it found."""
    hits = pool.find(chain)
    pool.acquire(hits)
    computed = pool.allocate(len(chain) - len(hits), _OWNER)
    for block, key in zip(computed, chain[len(hits) :], strict=True):
        pool.register(block, key)
    pool.release([*hits, *computed])
    return len(hits)


def _key_maker(blocks_per_id: int) -> Callable[[int], list[bytes]]:
    """Stands in for the block hashes: an id says what is before it already."""
    known: dict[int, list[bytes]] = {}

    def keys(one: int) -> list[bytes]:
        if one not in known:
            first = one * blocks_per_id
            known[one] = [(first + index).to_bytes(16) for index in range(blocks_per_id)]
        return known[one]

    return keys


def optimal_hits(prompts: Sequence[Prompt], capacity: int) -> int:
    """How many ids of `prompts` a cache of `capacity` ids can find, all told in advance.

    Of ids that are needed equally late, the tail of a prompt goes before its head.
    """
    never = len(prompts)
    next_use: dict[int, int] = {}
    needed_at: list[list[int]] = []
    for number in range(len(prompts) - 1, -1, -1):
        needed_at.append([next_use.get(one, never) for one in prompts[number]])
        next_use.update(dict.fromkeys(prompts[number], number))
    cached: dict[int, int] = {}
    last: list[tuple[int, int, int]] = []
    hits = 0
    for prompt, needed in zip(prompts, reversed(needed_at), strict=True):
        hits += next((index for index, one in enumerate(prompt) if one not in cached), len(prompt))
        for index, (one, again) in enumerate(zip(prompt, needed, strict=True)):
            cached[one] = again
            heapq.heappush(last, (-again, -index, one))
        while len(cached) > capacity:
            again, _, one = heapq.heappop(last)
            if cached.get(one) == -again:  # else it was needed, and pushed anew, since
                del cached[one]
    return hits


def _figures(
    replays: Mapping[int, Mapping[Eviction, Replay]],
    optimal: Mapping[int, float],
    unbounded: float,
) -> dict[str, float]:
    figures = {"unbounded_hit_ratio": unbounded}
    for capacity, by_policy in replays.items():
        figures[_figure("optimal", f"hit_ratio_{capacity}")] = optimal[capacity]
        for policy, found in by_policy.items():
            figures[_figure(policy, f"hit_ratio_{capacity}")] = found.hit_ratio
    for policy in _POLICIES:
        runs = [by_policy[policy] for by_policy in replays.values()]
        total = Replay(sum(run.blocks for run in runs), seconds=sum(run.seconds for run in runs))
        figures[_figure(policy, "us_per_block")] = total.us_per_block
    return {name: figures[name] for name in FIGURES}


def _table(figures: Mapping[str, float], found: Conversations) -> Table:
    columns = [f"{capacity:,} ids" for capacity in CAPACITIES]
    table = Table("block hits", *columns, "CPU us a block", title=f"trace: {found.source}")
    for policy in ("lru", *(name for name in _POLICIES if name != "lru"), "optimal"):
        ratios = [figures[_figure(policy, f"hit_ratio_{size}")] for size in CAPACITIES]
        timing = figures.get(_figure(policy, "us_per_block"))
        table.add_row(
            policy,
            *(f"{ratio * 100:.1f} %" for ratio in ratios),
            "" if timing is None else f"{timing:.2f}",
        )
    over = [
        figures[f"hit_ratio_{size}"] / (figures[f"lru_hit_ratio_{size}"] or 1)
        for size in CAPACITIES
    ]
    table.add_row(f"{_DEFAULT} / lru", *(f"{ratio:.2f}x" for ratio in over))
    table.caption = (
        f"{len(found.prompts):,} prompts, {found.num_ids:,} ids; "
        f"{figures['unbounded_hit_ratio'] * 100:.1f} % if nothing is ever evicted"
    )
    return table
