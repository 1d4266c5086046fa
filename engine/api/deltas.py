"""What comes out: tokens, and how each sequence ends."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "aborted", "error"]


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural-log probabilities of one generated token and of the most likely alternatives."""

    logprob: float
    top: list[tuple[int, float]]


class PromptLogprobs(TokenLogprobs, frozen=True):
    """Those of one token of a prompt, which is the `rank`-th likeliest in its place."""

    rank: int


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of sequence `index` of a request; its last delta carries `finish_reason`.

    A request is over when each of its `num_outputs` indices is; one that fails or is aborted ends
    all that are left. A beam search delivers nothing before its end: then each hypothesis comes
    whole, best first, with its `score` (`sequences_scores` in `transformers`). Until then it tells
    at each step by how many tokens all its beams have grown so far: `searched_tokens`.

    A stop token is delivered like any other: it is the last of `token_ids` when
    `finish_reason == "stop"`. `cached_tokens` counts prompt tokens that were not computed because
    their blocks were found in the cache when the request was first admitted, `cache_write_tokens`
    those that were computed and can be found from then on. `prompt_logprobs` come in deltas of
    their own, in the prompt's order and before its first output.
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[PromptLogprobs] = []
    finish_reason: FinishReason | None = None
    score: float | None = None
    searched_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    waited_seconds: float = 0.0
    """How long the request has waited to be admitted since the last time that it was told of: in
    the queue, or, after that, because it was preempted. Told of its first sequence."""
    saved_seconds: float = 0.0
    """What computing the `cached_tokens` would have taken, by what steps have taught, less what it
    takes to copy those from host memory. Told once, of its first sequence."""
    rebuilt_seconds: float = 0.0
    """How long its reader had nothing because another engine took a dead one's place."""
    error: str | None = None
