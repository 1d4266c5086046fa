"""One line of generation: its token ids, three counters and a block table."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

from msgspec import structs

from engine.api import EngineRequest, FinishReason, SamplingParams
from engine.blocks.table import BlockTable
from engine.grammar.compiled import CompiledGrammar

_64_BITS = 0xFFFFFFFFFFFFFFFF


@dataclass(eq=False)
class Sequence:
    """One of a request's continuations; `index` tells them apart.

    Three lengths tell it all: `0 <= num_cached <= num_computed <= num_tokens`. `num_cached` is set
    at admission, `num_computed` when a step is planned, `num_tokens` when a token is drawn. Steps
    may be launched before the tokens of those before them are known: these have their places, in
    blocks as well, and are counted, but only what `token_ids` holds is hashed.
    """

    request: EngineRequest
    table: BlockTable
    index: int = 0
    grammar: CompiledGrammar | None = None
    """What its output is to be."""
    sampling: SamplingParams = field(init=False)
    """How its tokens are chosen; the seed is its own."""
    token_ids: list[int] = field(init=False)
    """The known tokens: the prompt and what has been generated."""
    num_drawn: int = 0
    """Tokens behind those that launched steps draw, and that are not known yet."""
    num_cached: int = 0
    num_computed: int = 0
    first_hit: int | None = field(init=False)
    """Prompt tokens found in the cache when the request was first admitted."""
    finish_reason: FinishReason | None = None
    error: str | None = None
    """Why the request failed, when `finish_reason` is "error"."""
    score: float | None = None
    """What a beam search thinks of it, which it is a result of."""
    num_searched: int = 0
    """`SequenceGroup.num_searched`, when it was last news."""
    waited_seconds: float = 0.0
    """How long its request has waited, if that is still to be told with its news."""
    saved_seconds: float = 0.0
    """What its request has saved by `first_hit`, if that is still to be told."""

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt)
        self.first_hit = self.request.cached_tokens
        sampling = self.request.sampling
        self.sampling = structs.replace(sampling, seed=sequence_seed(sampling.seed, self.index))
        for token_id in self.request.generated_by(self.index):
            self.append(token_id)
        self.table.begin(self.num_tokens)

    @property
    def request_id(self) -> str:
        """Unique among live requests."""
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        """The prompt and what has been generated, known or not."""
        return len(self.token_ids) + self.num_drawn

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def num_written(self) -> int:
        """Tokens of the prompt that were not found in the cache, and will be."""
        if self.first_hit is None:
            return 0
        return max(0, self.table.num_kept(self.num_prompt_tokens) - self.first_hit)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV no step computes so far."""
        return self.num_tokens - self.num_computed

    @property
    def may_decode(self) -> bool:
        """Whether its newest token is to be computed, were it admitted and its prompt computed.

        Not if a launched step does that, nor if a token which is not known yet is its last one.
        """
        if self.num_drawn and self.num_output_tokens >= self.sampling.max_tokens:
            return False
        return self.num_uncomputed > 0

    def num_passed(self, block_size: int) -> int:
        """Behind so many tokens nobody needs what no layer sees any more: where it goes on, but
        others do behind the last full block of what is to be pinned.
        """
        if self.request.pin is None:
            return self.num_computed
        return min(self.num_computed, self.num_prompt_tokens // block_size * block_size)

    def compute(self, count: int) -> int:
        """Count `count` more tokens as computed: a step does it. Returns where they start."""
        start = self.num_computed
        self.num_computed += count
        if self.num_computed <= len(self.token_ids):
            self.table.seal(self.token_ids, self.num_computed)
        return start

    def append(self, token_id: int) -> None:
        """Add a generated token and decide whether it is the last; then nothing behind it counts.

        A step that computes its KV may have been launched.
        """
        self.token_ids.append(token_id)
        if token_id in self.sampling.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) - self.num_prompt_tokens >= self.sampling.max_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            self.num_drawn = 0
        if self.num_computed >= len(self.token_ids):
            self.table.seal(self.token_ids, len(self.token_ids))

    def fork(self) -> Sequence:
        """Another sequence that begins with the same tokens, in the same blocks."""
        fork = copy(self)
        fork.table, fork.token_ids = self.table.fork(), list(self.token_ids)
        fork.waited_seconds = fork.saved_seconds = 0.0
        return fork

    def take_waited(self) -> float:
        """How long its request has waited, once."""
        waited, self.waited_seconds = self.waited_seconds, 0.0
        return waited

    def take_saved(self) -> float:
        """What its request has saved, once."""
        saved, self.saved_seconds = self.saved_seconds, 0.0
        return saved

    def fail(self, message: str) -> None:
        """End it for a reason that `message` explains to the client."""
        self.finish_reason = "error"
        self.error = message


def sequence_seed(seed: int, index: int) -> int:
    """The seed of one sequence of a request: that of the request for the first, then 63-bit mixes.

    The mix is a step of SplitMix64 (Steele, Lea and Flood, 2014).
    """
    if index == 0:
        return seed
    value = (seed + index * 0x9E3779B97F4A7C15) & _64_BITS
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _64_BITS
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _64_BITS
    return (value ^ (value >> 31)) >> 1
