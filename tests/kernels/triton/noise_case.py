"""Draws noise in Triton's interpreter, in a process of its own, and compares it with numpy's bits.

Prints how far the farthest value is off, relative to it.
"""

from __future__ import annotations

import os


def main() -> None:
    """Over a size that no block divides, and states of either sign."""
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy as np
    import torch

    from engine.run.noise import gumbel, noise_states
    from kernels.triton.noise import gumbel as drawn

    states = torch.from_numpy(noise_states([0, 7, 2**63 - 1, 2**64 - 1], [0, 3, 10**6, 5]))
    assert (states < 0).any()
    assert (states > 0).any()
    expected = gumbel(states, 1500).numpy()
    print(np.abs(drawn(states, 1500).numpy() / expected - 1).max())


if __name__ == "__main__":
    main()
