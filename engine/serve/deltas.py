"""What has become of sequences, as their readers are told."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from engine.api import EngineRequest, FinishReason, TokenDelta
from engine.sequences.plan import News, Sampled
from engine.sequences.sequence import Sequence


def delta_of(news: News, sampled: Sampled) -> TokenDelta:
    """What sampled tokens, or what a beam search has come to, are to a reader, and how long that
    had to wait.
    """
    sequence = news.sequence
    waited, saved = sequence.take_waited(), sequence.take_saved()
    if news.scored:
        told = [sampled.prompt_logprobs[row] for row in news.scored]
        return _told(sequence, waited_seconds=waited, saved_seconds=saved, prompt_logprobs=told)
    if sequence.sampling.max_tokens == 0:
        last = last_delta(sequence)
        return structs.replace(last, waited_seconds=waited, saved_seconds=saved)
    if sequence.request.beam is not None and sequence.finish_reason is None:
        grown = sequence.num_searched
        return _told(sequence, 0, waited_seconds=waited, saved_seconds=saved, searched_tokens=grown)
    # Tokens of this step, or with a score whole hypotheses.
    count = len(news.rows) if sequence.score is None else len(sequence.token_ids)
    first = max(sequence.num_prompt_tokens, len(sequence.token_ids) - count)
    logprobs = [sampled.logprobs[row] for row in news.rows]
    return TokenDelta(  # as it stands: of each sequence in each step
        request_id=sequence.request_id,
        index=sequence.index,
        token_ids=sequence.token_ids[first:],
        logprobs=[one for one in logprobs if one is not None] or None,
        finish_reason=sequence.finish_reason,
        score=sequence.score,
        searched_tokens=sequence.num_searched,
        cached_tokens=sequence.first_hit or 0,
        cache_write_tokens=sequence.num_written,
        waited_seconds=waited,
        saved_seconds=saved,
        error=sequence.error,
    )


def last_delta(sequence: Sequence) -> TokenDelta:
    """That a sequence has ended, and of what."""
    return _told(sequence, finish_reason=sequence.finish_reason, error=sequence.error)


def ends_of(
    request: EngineRequest,
    reason: FinishReason,
    error: str | None = None,
    index: int | None = None,
) -> list[TokenDelta]:
    """The last deltas of a request that has not come to the scheduler, or of one sequence."""
    indices = range(request.num_outputs) if index is None else [index]
    return [
        TokenDelta(
            request_id=request.request_id,
            index=one,
            finish_reason=reason,
            cached_tokens=request.cached_tokens or 0,
            error=error,
        )
        for one in indices
        if one not in request.ended
    ]


def _told(sequence: Sequence, index: int | None = None, **fields: Any) -> TokenDelta:
    return TokenDelta(
        request_id=sequence.request_id,
        index=sequence.index if index is None else index,
        cached_tokens=sequence.first_hit or 0,
        cache_write_tokens=sequence.num_written,
        **fields,
    )
