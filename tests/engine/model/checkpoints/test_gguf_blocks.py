"""What blocks of GGUF's types are taken apart to stands for what `gguf` itself reads in them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.model.checkpoints.gguf import split_blocks

BITS = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_0": 8, "Q5_1": 8, "Q5_K": 8, "Q8_0": 8}
ROWS, COLUMNS = 6, 512


def random_blocks(kind: str) -> np.ndarray:
    """Every bit at random, but for scales, which are numbers."""
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    random = np.random.default_rng(7)
    blocks = random.integers(0, 256, (ROWS, COLUMNS // weights, size), dtype=np.uint8)
    halves = 4 if kind.endswith(("1", "K")) else 2
    scales = random.normal(0, 0.02, (*blocks.shape[:2], halves // 2)).astype(np.float16)
    blocks[:, :, :halves] = scales.view(np.uint8)
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", BITS)
def test_weights_are_those_of_gguf_bit_for_bit(kind: str) -> None:
    blocks = random_blocks(kind)
    found = split_blocks(kind, torch.from_numpy(blocks))
    assert found is not None
    assert found.bits == BITS[kind]
    assert found.codes.max() == (31 if kind.startswith("Q5") else 2**found.bits - 1)
    expected = gguf.dequantize(blocks, GGMLQuantizationType[kind])
    assert torch.equal(found.dequantize(), torch.from_numpy(expected))


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q6_K", "IQ4_NL"])
def test_types_of_another_structure_are_left_to_gguf(kind: str) -> None:
    assert split_blocks(kind, torch.zeros((1, 512), dtype=torch.uint8)) is None
