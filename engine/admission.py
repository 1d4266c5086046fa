"""The door: which requests can never be served, told before they queue."""

from __future__ import annotations

from engine.errors import RequestRefused
from engine.request import EngineInfo, EngineRequest


def check_request(request: EngineRequest, info: EngineInfo) -> None:
    """Raise `RequestRefused` if no state of the engine could ever serve `request`."""
    prompt, sampling = request.prompt, request.sampling
    if not prompt:
        raise RequestRefused("the prompt is empty", "prompt")
    if not 0 <= min(prompt) <= max(prompt) < info.vocab_size:
        raise RequestRefused("the prompt holds token ids outside the vocabulary", "prompt")
    if sampling.max_tokens < 0:
        raise RequestRefused("max_tokens must not be negative", "max_tokens")
    if any(not 0 <= token < info.vocab_size for token in sampling.logit_bias):
        raise RequestRefused("logit_bias names token ids outside the vocabulary", "logit_bias")
    if sampling.logprobs is not None and not 0 <= sampling.logprobs < info.vocab_size:
        raise RequestRefused("logprobs is out of range", "logprobs")
    total = len(prompt) + sampling.max_tokens
    if total > info.max_context_tokens:
        raise RequestRefused(
            f"{len(prompt)} prompt tokens and {sampling.max_tokens} output tokens exceed the "
            f"context of {info.max_context_tokens} tokens",
            "max_tokens" if len(prompt) < info.max_context_tokens else "prompt",
        )
