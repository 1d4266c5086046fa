"""A model without weights: the next token is a function of the whole sequence so far.

It reads the sequence back from "KV memory" (token ids stored in blocks), so a wrong block table, a
stale block or a lost write changes the output, just as it would with a real model.
"""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
from msgspec import structs

from engine.beam import BeamSearch, Candidate, Hypothesis, num_candidates
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.plan import StepPlan
from engine.request import BeamParams, EngineInfo, EngineRequest, Namespaces, SamplingParams
from engine.sampler import Sampled

VOCAB = 997
EOS = 3


def next_token(history: list[int], index: int = 0) -> int:
    """The simulated model and its sampler: a hash of all tokens and of the sequence's index."""
    value = len(history) + 1009 * index
    for token in history:
        value = (value * 31 + token + 7) % 1_000_003
    return value % VOCAB


def expected_output(prompt: list[int], max_tokens: int, index: int = 0) -> list[int]:
    """What sequence `index` of an undisturbed run generates."""
    history = list(prompt)
    for _ in range(max_tokens):
        history.append(next_token(history, index))
        if history[-1] == EOS:
            break
    return history[len(prompt) :]


def candidates(history: list[int], count: int) -> list[Candidate]:
    """What the simulated model lists for a beam: any tokens, often the stop token among them."""
    rng = random.Random(next_token(history))
    tokens = rng.sample(range(EOS + 1, VOCAB), count)
    if rng.random() < 0.3:
        tokens[rng.randrange(count)] = EOS
    return list(zip(tokens, sorted((-8 * rng.random() for _ in tokens), reverse=True), strict=True))


def expected_hypotheses(prompt: list[int], max_tokens: int, beam: BeamParams) -> list[Hypothesis]:
    """What an undisturbed search finds."""
    search = BeamSearch(beam, max_tokens, (EOS,))
    while not search.is_done:
        width = num_candidates(beam, (EOS,))
        search.advance([candidates(prompt + output, width) for output in search.outputs])
    return search.hypotheses


class SimulatedRunner:
    """Writes each token into its slot, then computes from what the block table shows.

    Targets of copies are poisoned first, so that a copy that reads another one's target shows.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.memory = np.full((num_blocks, block_size), -1)
        self.block_size = block_size

    def execute(self, plan: StepPlan) -> Sampled:
        sources = [source for source, _ in plan.transfers.copies]
        targets = [target for _, target in plan.transfers.copies]
        assert len(set(targets)) == len(targets), "two copies into one block"
        written = {block for chunk in plan.chunks for block in chunk.sequence.table.blocks}
        assert written.issuperset(targets), "a copy for a sequence that is not computed"
        self.memory[targets] = -2
        self.memory[targets] = self.memory[sources]
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.start + chunk.count):
                block = chunk.sequence.table.blocks[position // self.block_size]
                token = chunk.sequence.token_ids[position]
                self.memory[block, position % self.block_size] = token
        tokens: list[int] = []
        listed: dict[int, list[Candidate]] = {}
        for chunk in plan.chunks:
            for sampler in chunk.samplers:
                seen = self.memory[sampler.table.blocks].reshape(-1)
                history = seen[: chunk.start + chunk.count].tolist()
                assert history == sampler.token_ids, "the KV memory shows other tokens"
                assert history == chunk.sequence.token_ids, "it draws from another one's row"
                beam = sampler.request.beam
                if beam is not None:
                    listed[len(tokens)] = candidates(history, num_candidates(beam, (EOS,)))
                tokens.append(next_token(history, sampler.index))
        return Sampled(tokens, [None] * len(tokens), listed)


def simulated_core(
    num_blocks: int = 64,
    block_size: int = 4,
    step_token_budget: int = 32,
    max_running_requests: int = 16,
    prefix_cache: bool = True,
    fairness: Literal["vtc", "fcfs"] = "vtc",
) -> EngineCore:
    """An engine core around the simulated model."""
    config = EngineConfig(
        model_path="simulated",
        block_size=block_size,
        step_token_budget=step_token_budget,
        max_running_requests=max_running_requests,
        prefix_cache=prefix_cache,
        fairness=fairness,
    )
    info = EngineInfo(
        model="simulated",
        device="cpu",
        dtype="int64",
        block_size=block_size,
        num_blocks=num_blocks,
        max_context_tokens=num_blocks * block_size,
        max_running_sequences=max_running_requests,
        vocab_size=VOCAB,
        eos_token_ids=(EOS,),
        hash_extras=b"simulated",
    )
    return EngineCore(config, info, SimulatedRunner(num_blocks, block_size))


def make_request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 8,
    tenant: str = "a",
    user: str | None = None,
    shared_tokens: int = 0,
    **fields: object,
) -> EngineRequest:
    """A greedy request in the namespaces of `tenant` and `user`, with more `fields` if given."""
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
    return structs.replace(request, **fields)


def run_to_end(core: EngineCore, limit: int = 10_000) -> dict[str, list[int]]:
    """Step until idle, checking the books after every step; returns each request's output."""
    return {name: outputs[0] for name, outputs in run_all_to_end(core, limit).items()}


def run_all_to_end(core: EngineCore, limit: int = 10_000) -> dict[str, dict[int, list[int]]]:
    """The same for requests of several sequences: their outputs by index."""
    outputs: dict[str, dict[int, list[int]]] = {}
    for _ in range(limit):
        if core.is_idle:
            break
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


def random_prompt(rng: random.Random, length: int) -> list[int]:
    """Tokens without meaning."""
    return [rng.randrange(4, VOCAB) for _ in range(length)]


def available(pool: BlockPool, owner: str) -> int:
    """How many blocks `owner` can allocate now."""
    return max(n for n in range(pool.num_blocks + 1) if pool.can_allocate(n, owner))
