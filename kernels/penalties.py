"""The door to penalties from counts that a device keeps of the tokens of its sequences."""

from __future__ import annotations

from torch import Tensor

from kernels import backends
from kernels.backends import Backend


def penalise(
    scores: Tensor,
    counts: Tensor,
    slots: Tensor,
    numbers: Tensor,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """A copy of `scores`, in float32, less what tokens lose that are there already.

    `scores` is [num_rows, vocab_size], each row contiguous. Row r has the tokens that
    `counts[slots[r]]` tells of ([num_slots, vocab_size] int32, contiguous): twice the number of
    times that a token is in the output, and one more if it is in the prompt; none if `slots[r]`
    ([num_rows] int64) is -1. `numbers` is [3, num_rows] float32, contiguous: repetition penalty,
    over prompt and output (Keskar et al., 2019), then frequency and presence penalty, over the
    output, as OpenAI defines them. Every backend rounds alike, after each operation.
    """
    chosen = backend or ("triton" if scores.device.type == "cuda" else "reference")
    room = backends.room("penalties", scores.device, chosen)
    result: Tensor = room.penalise(scores, counts, slots, numbers)
    return result
