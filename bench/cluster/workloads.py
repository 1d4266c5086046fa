"""What is asked of replicas: tenants with conversations, and two traces of real services.

Every prompt is a chain of block hashes, and its answer continues it. Arrivals are in a unit of
their own, which a simulation stretches to the load that it wants.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Final

from bench.common.traces import TOKENS_PER_ID, Prompt, Traced, draw_prompts, draw_trace, read_trace
from bench.registry import BenchError
from engine.blocks.hashing import HASH_BYTES

NUM_TENANTS: Final = 32
_LONGEST_TURN: Final = 6_000
_LONGEST_PROMPT: Final = 32_000


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how long its answer will be."""

    at: float
    session: int
    """The conversation that it is a turn of."""
    prompt_hashes: list[bytes]
    """Of the full blocks of the prompt."""
    answer_hashes: list[bytes]
    """Of those that the answer fills, behind them."""
    prompt_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        """Tells it from all others."""
        return f"{self.session} {self.at}"


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival, and the memory that each replica has for them.

    The first quarter of the requests warms the caches, and is not counted.
    """

    source: str
    requests: list[Request]
    block_size: int
    replica_tokens: int

    @property
    def num_warming(self) -> int:
        """Requests before those that count."""
        return len(self.requests) // 4

    @property
    def counted(self) -> list[Request]:
        """The others."""
        return self.requests[self.num_warming :]

    def lasting(self, seconds: float) -> list[Request]:
        """All requests, so that those which count come within so many seconds."""
        first = self.requests[0].at
        factor = seconds / (self.requests[-1].at - self.counted[0].at)
        return [replace(one, at=(one.at - first) * factor) for one in self.requests]


def tenants(count: int, seed: int, replica_tokens: int) -> Workload:
    """Conversations of 32 tenants, which are popular by Zipf's law and have a system prompt each.

    A conversation has four turns on average; its next one comes some time after the last.
    """
    draw = random.Random(f"tenants {seed}")
    systems = [round(_clipped(draw, 7.6, 0.7, 6_000)) for _ in range(NUM_TENANTS)]
    popular = list(accumulate(1 / rank for rank in range(1, NUM_TENANTS + 1)))
    block_size = 64
    requests: list[Request] = []
    start = 0.0
    session = NUM_TENANTS
    while len(requests) < 2 * count:
        start += draw.expovariate(1.0)
        [tenant] = draw.choices(range(NUM_TENANTS), cum_weights=popular)
        session += 1
        at, tokens = start, systems[tenant]
        while True:
            prompt = tokens + round(_clipped(draw, 4.8, 1.2, _LONGEST_TURN))
            output = round(_clipped(draw, 5.0, 0.8, 1_000))
            tokens = prompt + output
            if tokens > _LONGEST_PROMPT:
                break
            chain = _chain(tenant, session, systems[tenant] // block_size, tokens // block_size)
            full = prompt // block_size
            requests.append(Request(at, session, chain[:full], chain[full:], prompt, output))
            at += _clipped(draw, 5.0, 1.0, 3_000)
            if draw.random() < 0.25:
                break
    requests.sort(key=lambda request: request.at)
    # The last conversations have no younger ones beside them.
    return Workload(f"drawn, seed {seed}", requests[:count], block_size, replica_tokens)


def azure(trace: Path, most: int, seed: int, replica_tokens: int) -> Workload:
    """Arrivals and lengths of Azure's trace; each prompt begins with that of one of 32 tenants.

    Nothing else is shared: no turns, and only the hottest prompts are worth anything. Where there
    is no such file, lengths are drawn with its statistics.
    """
    draw = random.Random(f"azure {seed}")
    found = read_trace(trace)[:most] if trace.exists() else draw_trace(most, seed)
    systems = [round(_clipped(draw, 6.0, 0.7, 3_000)) for _ in range(NUM_TENANTS)]
    popular = list(accumulate(1 / rank for rank in range(1, NUM_TENANTS + 1)))
    block_size = 64

    def request(number: int, one: Traced) -> Request:
        [tenant] = draw.choices(range(NUM_TENANTS), cum_weights=popular)
        session = NUM_TENANTS + number
        prompt, output = one.prompt_tokens, max(1, one.output_tokens)
        chain = _chain(
            tenant, session, systems[tenant] // block_size, (prompt + output) // block_size
        )
        full = prompt // block_size
        return Request(one.at_seconds, session, chain[:full], chain[full:], prompt, output)

    source = trace.name if trace.exists() else f"synthetic, seed {seed}"
    requests = [request(number, one) for number, one in enumerate(found)]
    return Workload(source, requests, block_size, replica_tokens)


def mooncake(trace: Path, most: int, seed: int, replica_tokens: int) -> Workload:
    """An hour of a chat service with long prompts; where there is no such file, one like it.

    All prompts begin with the same block, and the second one tells conversations apart. Raises
    `BenchError`, naming the line, for a file that is no such trace.
    """
    draw = random.Random(f"mooncake {seed}")
    if trace.exists():
        requests = [
            _mooncake_request(trace, number, line, draw)
            for number, line in enumerate(trace.read_text().splitlines()[:most], 1)
        ]
    else:
        requests = [
            _drawn(number, ids, draw) for number, ids in enumerate(draw_prompts(seed, most))
        ]
    if not requests:
        raise BenchError(f"{trace} is empty")
    requests.sort(key=lambda request: request.at)
    source = trace.name if trace.exists() else f"synthetic, seed {seed}"
    return Workload(source, requests, TOKENS_PER_ID, replica_tokens)


def _mooncake_request(trace: Path, number: int, line: str, draw: random.Random) -> Request:
    """Times are told in steps of three seconds, within which requests are spread here."""
    try:
        row = json.loads(line)
        at, ids = row["timestamp"] / 1000 + draw.uniform(0.0, 3.0), list(row["hash_ids"])
        prompt, output = int(row["input_length"]), max(1, int(row["output_length"]))
        hashes = [_key(0, one) for one in ids[: prompt // TOKENS_PER_ID]]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise BenchError(f"{trace}, line {number}: no request in Mooncake's format") from error
    return Request(at, ids[min(1, len(ids) - 1)], hashes, [], prompt, output)


def _drawn(number: int, ids: Prompt, draw: random.Random) -> Request:
    hashes = [_key(0, one) for one in ids]
    prompt = len(ids) * TOKENS_PER_ID
    output = round(_clipped(draw, 5.5, 0.8, 2_000))
    return Request(float(number), ids[min(1, len(ids) - 1)], hashes, [], prompt, output)


WORKLOADS: Final = ("tenants", "azure", "mooncake")


def load_workload(name: str, traces: Path, seed: int, most: int) -> Workload:
    """One of `WORKLOADS`, of at most so many requests. Raises `BenchError` for a broken trace."""
    if name == "tenants":
        return tenants(most, seed, 512 * 1024)
    if name == "azure":
        return azure(traces / "azure_conv_2023.csv", most, seed, 128 * 1024)
    return mooncake(traces / "mooncake_conversation.jsonl", most, seed, 2 * 1024 * 1024)


def _chain(tenant: int, session: int, num_shared: int, num_blocks: int) -> list[bytes]:
    """Stands in for block hashes: those of the tenant's system prompt, then the conversation's."""
    shared = min(num_shared, num_blocks)
    head = [_key(tenant, index) for index in range(shared)]
    return head + [_key(session, index) for index in range(shared, num_blocks)]


def _key(chain: int, index: int) -> bytes:
    return blake2b(chain.to_bytes(8) + index.to_bytes(8), digest_size=HASH_BYTES).digest()


def _clipped(draw: random.Random, log_mean: float, log_spread: float, most: float) -> float:
    return min(max(1.0, draw.lognormvariate(log_mean, log_spread)), most)
