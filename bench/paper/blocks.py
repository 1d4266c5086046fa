"""What paging does with blocks: how large they should be, and how many a shared prompt takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.paper.baselines.server import TracedRequest
from bench.paper.cost_model import PAPER_SLOTS, opt_13b_on_a100
from bench.paper.simulation import simulate
from bench.paper.systems import MAX_RUNNING, Paged
from bench.paper.workloads import Workload, tokens

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Partywall with blocks of one size."""

    block_size: int
    workload: str
    utilization: float
    """Of what is held, when memory is full."""
    running: float
    """Requests at once, when memory is full."""
    latency: float
    """Seconds a token at a rate that all block sizes are given."""


def try_block_size(
    block_size: int, workload: Workload, saturating_rate: float, rate: float
) -> BlockSize:
    """Saturate the memory, then measure the latency at `rate`."""
    cost = opt_13b_on_a100()
    full = Paged(PAPER_SLOTS, MAX_RUNNING, block_size, measure=True)
    short = replace(workload, seconds=workload.seconds / 4)
    saturated = simulate(full, short.trace(saturating_rate), cost)
    run = simulate(Paged(PAPER_SLOTS, MAX_RUNNING, block_size), workload.trace(rate), cost)
    return BlockSize(
        block_size,
        workload.name,
        saturated.memory.utilization,
        saturated.running,
        run.latency,
    )


def shared_prompt_blocks(
    num_requests: int, prompt_tokens: int, question_tokens: int = 20, output_tokens: int = 8
) -> tuple[int, int]:
    """Run that many requests over one system prompt at once, with blocks of 16 tokens.

    Returns how many blocks the system prompt holds then, and how many it would hold if each request
    had its own.
    """
    block_size = 16
    slots = prompt_tokens + num_requests * (question_tokens + output_tokens + 3 * block_size)
    server = Paged(slots, num_requests, block_size)
    for number in range(num_requests):
        prompt = tokens(-1, prompt_tokens) + tokens(number, question_tokens)
        output = tokens(number, output_tokens)
        server.submit(TracedRequest(number, 0.0, prompt, output))
    width = prompt_tokens // block_size
    held: set[int] = set()
    unshared = 0
    running = server.core.scheduler.running

    def look() -> None:
        nonlocal held, unshared
        tables = [group.sequences[0].table.blocks[:width] for group in running.values()]
        if sum(map(len, tables)) > unshared:
            unshared = sum(map(len, tables))
            held = set().union(*tables)

    server.runner.observe = look
    while not server.is_idle:
        server.step()
        server.core.scheduler.check()
    return len(held), unshared
