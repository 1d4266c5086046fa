"""Draws and penalties in Triton's interpreter, in a process of its own, against the reference.

Prints how many tokens differ and how many there are; then the same of penalised scores.
"""

from __future__ import annotations

import torch

from tests.kernels.triton.interpreter import interpret


def draws() -> tuple[int, int]:
    """Over tiles of which no vocabulary is a whole number but one."""
    from kernels.reference import sampling as reference
    from kernels.triton import sampling
    from tests.kernels.sampling_cases import batches, masks_of

    sampling.BLOCK = sampling.MASKING_BLOCK = 128
    different = drawn = 0
    for seed, given in enumerate(batches(18, (1, 17, 128, 200), 2)):
        for masks in (None, masks_of(given[0], seed)):
            tokens = sampling.draw(*given, masks)
            different += int((tokens != reference.draw(*given, masks)).sum())
            drawn += len(tokens)
    return different, drawn


def penalties() -> tuple[int, int]:
    """Of two types, over tiles of which the vocabulary is no whole number."""
    from kernels.penalties import penalise
    from kernels.triton import penalties as compiled

    compiled.BLOCK = 64
    generator = torch.Generator().manual_seed(1)
    counts = torch.randint(0, 7, (3, 150), dtype=torch.int32, generator=generator)
    slots = torch.tensor([2, -1, 0])
    numbers = torch.rand(3, 3, generator=generator) + 0.3
    different = compared = 0
    for dtype in (torch.float32, torch.float16):
        scores = (torch.randn(3, 150, generator=generator) * 5).to(dtype)
        found = penalise(scores, counts, slots, numbers, backend="triton")
        expected = penalise(scores, counts, slots, numbers, backend="reference")
        different += int((found != expected).sum())
        compared += found.numel()
    return different, compared


if __name__ == "__main__":
    interpret()
    print(*draws(), *penalties())
