"""Requests that lease their prompts, floods of another tenant's, and a real engine for both."""

from __future__ import annotations

import itertools
import random
from time import perf_counter
from typing import Final

from bench.common import engines
from bench.common.engines import finish
from bench.registry import BenchError
from engine.api import CachePolicy, EngineRequest
from engine.blocks.hashing import derive_key
from engine.config import EngineConfig
from engine.serve.core import EngineCore

LEASE: Final = CachePolicy(lease_s=1800.0)
_AT_ONCE: Final = 16
_LONGEST: Final = 1024
_VOCABULARY: Final = 40_000

_QUESTION_TOKENS: Final = 16
_SYSTEM_TOKENS: Final = 512
_TENANTS: Final = 4
_LOAD: Final = 8
"""Requests at once."""
_OUTPUT_TOKENS: Final = 64
_FLOODS_A_POOL: Final = 2.0
"""So many times what leases leave of the pool: nothing else that was there before is left."""


def request(
    name: str, tenant: str, prompt: list[int], output: int, cache: CachePolicy
) -> EngineRequest:
    """A request in its tenant's namespace."""
    key = derive_key(bytes(32), tenant)
    return engines.request(name, prompt, output, tenant=tenant, key=key, cache=cache)


def draw_prompt(draw: random.Random, length: int) -> list[int]:
    """Tokens that begin like no other prompt."""
    return draw.choices(range(100, _VOCABULARY), k=length)


def flood(core: EngineCore, draw: random.Random, num_tokens: int) -> None:
    """Another tenant's new prompts of many lengths, so many tokens together, many at once."""
    left, number = num_tokens, 0
    while left > 0:
        for _ in range(_AT_ONCE):
            longest = min(_LONGEST, core.info.max_context_tokens - 1)
            prompt = draw_prompt(draw, draw.randint(64, longest))
            core.submit(request(f"flood {number}", "flood", prompt, 1, CachePolicy()))
            left, number = left - len(prompt), number + 1
        finish(core)


class LeasedModel:
    """One engine whose pool holds some leased prompts, and a flood beside them."""

    def __init__(self, config: EngineConfig, prompt_tokens: int, num_prompts: int) -> None:
        """Load the model. Raises `BenchError` where the pool has no room for the prompts."""
        from engine.assembly.assemble import load_core  # torch, once its environment is set

        self._core = load_core(config)
        info = self._core.info
        leased = -(-prompt_tokens // info.block_size) * num_prompts
        if leased > 0.8 * info.num_blocks:
            raise BenchError(f"{num_prompts} prompts fill most of {info.num_blocks} blocks")
        self._flood_tokens = int(_FLOODS_A_POOL * (info.num_blocks - leased) * info.block_size)
        self._draw = random.Random(1)
        self._names = map(str, itertools.count())
        self._prompts = [draw_prompt(self._draw, prompt_tokens) for _ in range(num_prompts)]

    def first_tokens(self, floods: int) -> tuple[list[float], list[float]]:
        """Seconds to the first token behind leased prompts after floods, and once more after that.

        Each time new tokens follow the prompt, as a conversation's next turn does. Raises
        `BenchError` if a prompt is not found whole.
        """
        for prompt in self._prompts:
            self._core.submit(self._ask(self._next_turn(prompt), "leased", 1, LEASE))
            finish(self._core)
        leased: list[float] = []
        warm: list[float] = []
        for _ in range(floods):
            flood(self._core, self._draw, self._flood_tokens)
            for prompt in self._prompts:
                leased.append(self._first_token(prompt))
                warm.append(self._first_token(prompt))
        self._core.forget_tenant("leased")
        return leased, warm

    def throughput_ratios(self, rounds: int) -> list[float]:
        """Output tokens a second with leases over those without, of each round.

        Both are asked the same, since how many tokens a step yields depends on what is said. They
        take turns in being first; a round before them warms up.
        """
        systems = [draw_prompt(self._draw, _SYSTEM_TOKENS) for _ in range(_TENANTS)]
        ratios: list[float] = []
        ways = {"with": LEASE, "without": CachePolicy()}
        for number in range(rounds + 1):
            order = list(ways) if number % 2 else list(ways)[::-1]
            prompts = [self._next_turn(systems[index % _TENANTS]) for index in range(_LOAD)]
            seconds = {way: self._load(prompts, way, ways[way]) for way in order}
            if number:
                ratios.append(seconds["without"] / seconds["with"])
        return ratios

    def _load(self, prompts: list[list[int]], way: str, cache: CachePolicy) -> float:
        """Seconds that it takes to answer all prompts at once, of this way's tenants in turn."""
        start = perf_counter()
        for index, prompt in enumerate(prompts):
            tenant = f"{way} {index % _TENANTS}"
            self._core.submit(self._ask(prompt, tenant, _OUTPUT_TOKENS, cache))
        finish(self._core)
        return perf_counter() - start

    def _first_token(self, prompt: list[int]) -> float:
        """Seconds from a request behind `prompt` to its first token."""
        start = perf_counter()
        once = CachePolicy(up_to=len(prompt))
        deltas = self._core.submit(self._ask(self._next_turn(prompt), "leased", 1, once))
        while not deltas:
            deltas = self._core.step()
        seconds = perf_counter() - start
        if deltas[0].cached_tokens != len(prompt):
            raise BenchError(f"{deltas[0].cached_tokens} tokens were found of {len(prompt)}")
        finish(self._core)
        return seconds

    def _next_turn(self, prompt: list[int]) -> list[int]:
        """A prompt with a question behind it that was never asked."""
        return [*prompt, *draw_prompt(self._draw, _QUESTION_TOKENS)]

    def _ask(
        self, prompt: list[int], tenant: str, output: int, cache: CachePolicy
    ) -> EngineRequest:
        return request(next(self._names), tenant, prompt, output, cache)
