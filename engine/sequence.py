"""One line of generation: its token ids, three counters and a block table."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.block_table import BlockTable
from engine.request import EngineRequest, FinishReason, SamplingParams


@dataclass(eq=False)
class Sequence:
    """State of a request inside the engine.

    Three lengths tell it all: `0 <= num_cached <= num_computed <= num_tokens`. `num_cached` is set
    at admission, `num_computed` when a step is planned, `num_tokens` when a token is appended.
    """

    request: EngineRequest
    table: BlockTable
    token_ids: list[int] = field(init=False)
    num_cached: int = 0
    num_computed: int = 0
    first_hit: int | None = field(init=False)
    """Prompt tokens found in the cache when the request was first admitted."""
    finish_reason: FinishReason | None = None
    error: str | None = None
    """Why the request failed, when `finish_reason` is "error"."""
    arrival: int = 0
    """Its place in the order in which requests came."""
    is_charged: bool = field(init=False)
    """Whether its tenant has been charged for the prompt."""

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt)
        self.first_hit = self.request.cached_tokens
        self.is_charged = self.request.num_generated > 0
        for token_id in self.request.generated_by(0):
            self.append(token_id)

    @property
    def request_id(self) -> str:
        """Unique among live requests."""
        return self.request.request_id

    @property
    def sampling(self) -> SamplingParams:
        """How this sequence's tokens are chosen."""
        return self.request.sampling

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what has been generated."""
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose KV has not been computed."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest token is left to compute."""
        return self.num_output_tokens > 0 and self.num_uncomputed == 1

    def append(self, token_id: int) -> None:
        """Add a generated token and decide whether it is the last."""
        self.token_ids.append(token_id)
        if token_id in self.sampling.stop_token_ids:
            self.finish_reason = "stop"
        elif self.num_output_tokens >= self.sampling.max_tokens:
            self.finish_reason = "length"

    def fail(self, message: str) -> None:
        """End the sequence for a reason that `message` explains to the client."""
        self.finish_reason = "error"
        self.error = message
