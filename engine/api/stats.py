"""What a running engine is, and how it goes: a snapshot of its books."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.api.cache import Loss
from engine.api.kinds import EVERYTHING, Kind, block_pages, most_pages, most_tokens


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a running engine is; constant from ready to close."""

    model: str
    device: str
    dtype: str
    block_size: int
    num_blocks: int
    block_bytes: int = 0
    """What a block takes of the KV memory, a draft model's part included."""
    num_pages: int = 0
    """What the memory is cut into; 0: a page is a block."""
    kinds: tuple[Kind, ...] = (EVERYTHING,)
    """Of the model's layers; a block of `num_blocks` is one of each kind."""
    step_tokens: int = 0
    """Computed in one step, at most."""
    num_host_blocks: int = 0
    """Blocks that the host tier holds."""
    max_context_tokens: int
    """Prompt plus output of one sequence, at most: never more than the block pool holds."""
    max_running_sequences: int
    """How many sequences run at once, at most, and so how many one request may have."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    hash_extras: bytes
    """What else changes KV besides tokens (weights, dtype); part of every block hash."""
    rotary_switch: int | None = None
    """A sequence of more tokens than this is computed with other rotary factors, from its first
    token on, and shares no block with shorter ones; `None`: one set of factors serves all."""
    limits_prompts: bool = False
    """Whether tokens of prompts go through states otherwise than those that are drawn, so that no
    prompt can go on from what was drawn."""
    has_grammars: bool = False
    """Whether outputs can be held to a grammar: the model has a tokenizer that tells its tokens'
    bytes, and an end token."""
    linears: dict[str, tuple[int, ...]] = {}
    """What adapters may change, by the names of the model's modules: numbers of inputs and outputs,
    and of experts whose parameter it is. None where no adapters are served."""
    picture_token_id: int | None = None
    """What stands for a picture in prompts; `None`: the model sees none."""
    has_mutual_pictures: bool = False
    """Whether such tokens, side by side, see each other, and are computed in one step."""
    logit_error: float = 0.0
    """How far logits are from the original model's on a few tokens, relatively."""

    @property
    def memory_pages(self) -> int:
        """Pages of the KV memory."""
        return self.num_pages or self.num_blocks

    @property
    def block_pages(self) -> int:
        """Pages of a block of each kind."""
        return block_pages(self.kinds)

    def pages_for(self, shared: int, total: int, lines: int = 1) -> int:
        """What `lines` sequences of `total` tokens hold at most, of which the first `shared` are
        the same, so that they share the full blocks of these.
        """
        return most_pages(self.kinds, self.block_size, shared, total, lines, self.step_tokens)

    def longest(self, num_pages: int, shared: int = 0, lines: int = 1) -> int:
        """The most tokens that such sequences may have in so many pages."""
        return most_tokens(self.kinds, self.block_size, num_pages, shared, lines, self.step_tokens)


class ReusePoint(msgspec.Struct, frozen=True):
    """Which part of the blocks that requests asked for a pool of so many `blocks` would have found,
    evicting the least recently used first. An estimate, since the start.
    """

    blocks: int
    found: float


class Evicted(msgspec.Struct, frozen=True):
    """Blocks of the tenant `owner` that went, since the start, for memory that requests of `by`
    needed, or, where that is empty, as they were deleted; `lately` is within a minute. "other" are
    all others together.
    """

    owner: str
    by: str
    why: Loss
    blocks: int
    lately: int


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's part of a snapshot. Blocks are distinct ones.

    `blocks_held` are those of its running requests, of which `blocks_shared` are referenced more
    than once; `blocks_cached` are findable and held by nobody; `served` is its virtual counter's
    unit: weighted tokens served so far, divided by its weight. `blocks_leased` are kept because it
    has asked for it, `lease_block_seconds` their number times the seconds for which they were;
    `leases_broken` are leases that ended early because no other blocks were left, `leases_cut`
    those that did because there were more than it may have. These three count from
    `leases_since`, in seconds of the engine's clock: who was forgotten begins again.
    """

    running: int
    waiting: int
    blocks_held: int
    blocks_shared: int
    blocks_cached: int
    blocks_pinned: int
    served: float
    blocks_leased: int = 0
    lease_block_seconds: float = 0.0
    leases_broken: int = 0
    leases_cut: int = 0
    leases_since: float = 0.0


class LoadedAdapter(msgspec.Struct, frozen=True):
    """An adapter that requests need not wait for, by the name that they have for it."""

    name: bytes
    seconds: float
    """That it took until it could be computed with, when the service was last asked for it."""


class EngineCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What only grows while an engine runs: it counts from the start.

    Of the `preemptions`, `recomputed` requests were dropped to be computed again, the others were
    swapped. `swapped_out` and `swapped_in` are blocks copied to the host and back, for whatever
    reason; `prompt_tokens` are those of requests when they were first admitted, and what these
    found then: `cached_tokens`, of which some were in the host tier (`host_hit_blocks`) or inside
    of blocks (`in_block_tokens`).
    """

    steps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    recomputed: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    host_hit_blocks: int = 0
    in_block_tokens: int = 0
    spared_keys: int = 0
    """Keys that a layer's attention did not read again for sequences that share them."""
    drafted_tokens: int = 0
    """Guesses that were verified, several in a step."""
    accepted_tokens: int = 0
    """Of these: the ones that were right."""
    expert_passes: int = 0
    """Layers of experts that steps have computed; one of very many tokens counts several times."""
    experts_read: int = 0
    """In these: the experts that had tokens, whose weights were read."""
    expert_rows: int = 0
    """And their tokens, each once for each of its experts."""
    forks: int
    """Sequences that began as others of their request, in the same blocks."""
    copied_blocks: int
    """Shared blocks that were copied because a sequence wrote into them."""
    restored_blocks: int = 0
    """Read from disk, where they are kept over a restart."""
    pictures_seen: int = 0
    """By the model's tower; those that it had seen before are not counted again."""
    picture_seconds: float = 0.0
    """For which it has seen them."""
    lease_block_seconds: float = 0.0
    leases_broken: int = 0
    leases_cut: int = 0
    evicted_blocks: int = 0
    """For their memory, though a hit might have needed them."""
    invariant_violations: int
    plan_seconds: float = 0.0
    """For which the loop has decided what steps compute."""
    compute_seconds: float = 0.0
    """For which steps were computed, from their start or the end of the one before."""
    commit_seconds: float = 0.0
    """For which the loop has taken their tokens over."""


COUNTERS: Final = EngineCounters.__struct_fields__


class EngineStats(EngineCounters, frozen=True, kw_only=True):
    """A snapshot from inside the engine loop."""

    engine: str = ""
    """Which one has counted: one that is started again is another one."""
    running: int
    waiting: int
    queue_seconds: float = 0.0
    """To compute what is left of the prompts that it has accepted, as if nothing of those that wait
    were cached; 0 until steps have shown what a token takes."""
    prefill_tokens_per_s: float = 0.0
    """Of the beginning of a prompt; 0: not known yet."""
    blocks_total: int
    blocks_in_use: int
    blocks_cached: int
    peak_blocks_in_use: int
    blocks_pinned: int = 0
    blocks_leased: int = 0
    host_blocks_total: int = 0
    host_blocks_used: int = 0
    kept_files: int = 0
    """On disk, with blocks that are kept over a restart."""
    kept_bytes: int = 0
    num_experts: int = 0
    """Of a layer; 0 where nothing counts what they do: there are none, or the model's own modules
    compute."""
    expert_imbalance: float | None = None
    """How many tokens the busiest expert of a layer had lately, by the mean of all; the mean over
    layers. `None` until they have had enough."""
    tenants: dict[str, TenantStats] = {}
    adapters: list[LoadedAdapter] = []
    reuse: list[ReusePoint] = []
    """By size of the pool, smaller and larger ones than it is."""
    evicted: list[Evicted] = []
    """Some pairs of tenants, those of whom most was evicted lately first."""
