"""Requests that lease their prompts, and floods of another tenant's."""

from __future__ import annotations

import random
from typing import Final

from bench.registry import BenchError
from engine.api import CachePolicy, EngineRequest, Namespaces, SamplingParams
from engine.blocks.hashing import derive_key
from engine.serve.core import EngineCore

LEASE: Final = CachePolicy(lease_s=1800.0)
_AT_ONCE: Final = 16
_LONGEST: Final = 1024
_VOCABULARY: Final = 40_000


def request(
    name: str, tenant: str, prompt: list[int], output: int, cache: CachePolicy
) -> EngineRequest:
    """A greedy request in its tenant's namespace."""
    key = derive_key(bytes(32), tenant)
    return EngineRequest(
        request_id=name,
        tenant=tenant,
        prompt=prompt,
        namespaces=Namespaces(shared_key=key, private_key=key),
        sampling=SamplingParams(max_tokens=output, temperature=0),
        cache=cache,
    )


def draw_prompt(draw: random.Random, length: int) -> list[int]:
    """Tokens that begin like no other prompt."""
    return draw.choices(range(100, _VOCABULARY), k=length)


def finish(core: EngineCore) -> None:
    """Serve what has been submitted. Raises `BenchError` if a request fails."""
    while not core.is_idle:
        for delta in core.step():
            if delta.error is not None:
                raise BenchError(f"request {delta.request_id!r} failed: {delta.error}")


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
