"""Draws in Triton's interpreter, in a process of its own, and compares with the reference.

Prints how many tokens differ, and how many there are.
"""

from __future__ import annotations

import os


def main() -> None:
    """Over tiles of which no vocabulary is a whole number but one."""
    os.environ["TRITON_INTERPRET"] = "1"
    from kernels.reference import sampling as reference
    from kernels.triton import sampling
    from tests.kernels.sampling_cases import batches

    sampling.BLOCK = 128
    different = drawn = 0
    for scores, states, asked in batches(18, (1, 17, 128, 200), 2):
        tokens = sampling.draw(scores, states, asked)
        different += int((tokens != reference.draw(scores, states, asked)).sum())
        drawn += len(tokens)
    print(different, drawn)


if __name__ == "__main__":
    main()
