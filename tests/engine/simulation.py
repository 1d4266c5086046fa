"""The engine around a model without weights, and what it is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import structs

from engine.api import (
    EVERYTHING,
    NOTHING_CACHED,
    CachePolicy,
    EngineInfo,
    EngineRequest,
    Kind,
    Namespaces,
    SamplingParams,
)
from engine.blocks.eviction.policy import Eviction
from engine.config import EngineConfig, Speculation
from engine.draft.drafter import Drafter
from engine.draft.worth import FREE_ROWS, RowCosts
from engine.schedule.swap_or_recompute import FREE_COPIES, CostModel, Policy
from engine.serve.core import EngineCore
from tests.engine.simulated_model import EOS, VOCAB
from tests.engine.simulated_runner import LateRunner, SimulatedRunner


def simulated_core(
    num_blocks: int = 64,
    block_size: int = 4,
    step_token_budget: int = 32,
    max_running_requests: int = 16,
    prefix_cache: bool = True,
    fairness: Literal["vtc", "fcfs"] = "vtc",
    eviction: Eviction = "arc",
    num_host_blocks: int = 0,
    recovery: Policy = "auto",
    min_run_tokens: int = 4,
    costs: CostModel = FREE_COPIES,
    runs_ahead: bool = False,
    rotary_switch: int | None = None,
    drafter: Drafter | None = None,
    row_costs: RowCosts = FREE_ROWS,
    speculation: Speculation = "off",
    itl_target_ms: float = 0.0,
    kept_dir: Path | None = None,
    kept_bytes: int = 1 << 30,
    lease_share: float = 1.0,
    clock: Callable[[], float] = float,
    kinds: tuple[Kind, ...] = (EVERYTHING,),
    spare_pages: int = 0,
) -> EngineCore:
    """An engine core around the simulated model; its steps come late if they are run ahead.

    There are `spare_pages` beyond those of the blocks.
    """
    num_pages = num_blocks * sum(kind.pages for kind in kinds) + spare_pages
    config = EngineConfig(
        model_path="simulated",
        block_size=block_size,
        step_token_budget=step_token_budget,
        max_running_requests=max_running_requests,
        prefix_cache=prefix_cache,
        fairness=fairness,
        eviction=eviction,
        recovery=recovery,
        min_run_tokens=min_run_tokens,
        speculation=speculation,
        itl_target_ms=itl_target_ms,
        kept_dir=None if kept_dir is None else str(kept_dir),
        kept_bytes=kept_bytes,
        kept_seconds=0.001,
        lease_share=lease_share,
    )
    info = EngineInfo(
        model="simulated",
        device="cpu",
        dtype="int64",
        block_size=block_size,
        num_blocks=num_blocks,
        num_pages=num_pages,
        kinds=kinds,
        num_host_blocks=num_host_blocks,
        step_tokens=step_token_budget,
        max_context_tokens=num_blocks * block_size,
        max_running_sequences=max_running_requests,
        vocab_size=VOCAB,
        eos_token_ids=(EOS,),
        hash_extras=b"simulated",
        rotary_switch=rotary_switch,
    )
    info = structs.replace(info, max_context_tokens=info.longest(num_pages))
    pages = num_pages, block_size, num_host_blocks * info.block_pages
    runner = (LateRunner if runs_ahead else SimulatedRunner)(*pages)
    return EngineCore(config, info, runner, costs, row_costs, drafter, clock=clock)


def make_request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 8,
    tenant: str = "a",
    user: str | None = None,
    shared_tokens: int = 0,
    cache: bool | CachePolicy = True,
    **fields: object,
) -> EngineRequest:
    """A greedy request in the namespaces of `tenant` and `user`, with more `fields` if given."""
    if isinstance(cache, bool):
        cache = CachePolicy() if cache else NOTHING_CACHED
    shared_key = tenant.encode().ljust(32, b".")
    request = EngineRequest(
        request_id=request_id,
        tenant=tenant,
        prompt=prompt,
        namespaces=Namespaces(
            shared_key=shared_key,
            private_key=shared_key if user is None else f"{tenant}/{user}".encode().ljust(32, b"."),
            shared_tokens=shared_tokens,
        ),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0, stop_token_ids=(EOS,)),
    )
    return structs.replace(request, cache=cache, **fields)


def run_to_end(
    core: EngineCore, limit: int = 10_000, preempt_after: int | None = None
) -> dict[str, list[int]]:
    """Step until idle, checking the books after every step; returns each request's output.

    Behind `preempt_after` steps all that runs is preempted.
    """
    outputs = run_all_to_end(core, limit, preempt_after)
    return {name: own[0] for name, own in outputs.items()}


def run_all_to_end(
    core: EngineCore, limit: int = 10_000, preempt_after: int | None = None
) -> dict[str, dict[int, list[int]]]:
    """The same for requests of several sequences: their outputs by index."""
    outputs: dict[str, dict[int, list[int]]] = {}
    for number in range(limit):
        if core.is_idle:
            break
        if number == preempt_after:
            for group in list(core.scheduler.running.values()):
                core.scheduler.lifecycle.preempt(group)
        for delta in core.step():
            assert delta.error is None
            own = outputs.setdefault(delta.request_id, {})
            own.setdefault(delta.index, []).extend(delta.token_ids)
        core.scheduler.check()
    assert core.is_idle, "the engine did not finish"
    return outputs


def cached_tokens(core: EngineCore, request: EngineRequest, limit: int = 1000) -> int:
    """Submit `request` and step until its first delta, which tells what it found in the cache."""
    core.submit(request)
    for _ in range(limit):
        for delta in core.step():
            if delta.request_id == request.request_id:
                return delta.cached_tokens
        core.scheduler.check()
    raise AssertionError("the request has no news")
