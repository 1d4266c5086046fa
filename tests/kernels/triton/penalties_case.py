"""Penalties in Triton's interpreter, in a process of its own, compared with the reference.

Prints how many scores differ, and how many there are.
"""

from __future__ import annotations

import os


def main() -> None:
    """Of two types, over tiles of which the vocabulary is no whole number."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from kernels.penalties import penalise
    from kernels.triton import penalties

    penalties.BLOCK = 64
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
    print(different, compared)


if __name__ == "__main__":
    main()
