"""Log-probabilities of prompts: what the scores behind a token make of the one that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.api import PromptLogprobs
from engine.batch.staging import Download, upload
from engine.sequences.plan import ScheduledChunk


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities on their way to the host."""

    _download: Download
    _counts: list[int]
    """How many alternatives each row has asked for."""

    def result(self) -> list[PromptLogprobs]:
        """Wait for them."""
        own, ranks, *best = (tensor.tolist() for tensor in self._download.wait())
        tokens, values = best or ([[]] * len(own), [[]] * len(own))
        told = []
        for row, count in enumerate(self._counts):
            top = zip(tokens[row][:count], values[row][:count], strict=True)
            told.append(PromptLogprobs(own[row], list(top), ranks[row]))
        return told


def score(logits: Tensor, chunks: Sequence[ScheduledChunk]) -> PromptScores:
    """Of the scored positions of `chunks`, whose `logits` are [num_rows, vocab_size].

    Those of the model itself, as in `engine.run.sampler`: nothing that a request adds counts.
    """
    following, counts = [], []
    for chunk in chunks:
        scored = chunk.scored
        following += chunk.sequence.token_ids[scored.start + 1 : scored.stop + 1]
        counts += [chunk.sequence.sampling.prompt_logprobs or 0] * len(scored)
    (tokens,) = upload([np.array(following, np.int64)], logits.device)
    logprobs = logits.float().log_softmax(dim=-1)
    own = logprobs.gather(-1, tokens[:, None])
    likelier = (logprobs > own).view(torch.uint8)  # whose sums are found faster than those of bools
    found = [own[:, 0], likelier.sum(-1, dtype=torch.int32) + 1]
    if most := max(counts):
        best = logprobs.topk(most, dim=-1)
        found += [best.indices, best.values]
    return PromptScores(Download.of(found), counts)
