"""A body of the completions API as requests to generate, one a prompt."""

from __future__ import annotations

import secrets

from app.chat.parse import sampled
from app.request.request import FieldNames, GenerationRequest
from app.wire.completions import CompletionBody
from app.wire.errors import invalid_request

_USUAL_TOKENS = 16
"""What OpenAI's API generates where no number is given."""


def generation_requests(body: CompletionBody) -> list[GenerationRequest]:
    """What a body asks for. Raises `ApiError` naming a field that does not go with others."""
    candidates = sampled(body.n or 1, body.best_of, streamed=bool(body.stream))
    if body.stream_options is not None and not body.stream:
        raise invalid_request("'stream_options' needs 'stream': true.", "stream_options")
    if body.stream and len(body.prompts) > 1:
        raise invalid_request("Only the answer to a single prompt can be streamed.", "stream")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid_request("'prompt_logprobs' cannot be streamed.", "prompt_logprobs")
    if body.scored is not None and candidates.num_sequences > 1:
        raise invalid_request("Scores of a prompt go with one answer.", candidates.field)
    request_id = f"cmpl-{secrets.token_hex(16)}"
    return [
        GenerationRequest(
            id=request_id if index == 0 else f"{request_id}-{index}",
            items=[],
            names=FieldNames(
                items="prompt" if len(body.prompts) == 1 else f"prompt[{index}]",
                max_tokens="max_tokens",
            ),
            sampling=body,
            model=body.model,
            max_tokens=_USUAL_TOKENS if body.max_tokens is None else body.max_tokens,
            logprobs=0 if body.logprobs is None and candidates.ranks else body.logprobs,
            candidates=candidates,
            raw=prompt,
            prompt_logprobs=body.scored,
        )
        for index, prompt in enumerate(body.prompts)
    ]
