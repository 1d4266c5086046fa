"""The reference is checked against sums written out key by key."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.attention import attend, write_kv
from tests.kernels.batches import Paged, drawn_sinks, paged


def written_out(
    example: Paged,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of every query and head as the sum that defines it."""
    output = torch.zeros(example.query.shape, dtype=torch.float64)
    batch, kv, block_size = example.batch, example.kv.double(), example.kv.shape[3]
    num_heads = example.query.shape[1]
    for seq, context_len in enumerate(batch.context_lens.tolist()):
        start, end = batch.query_starts[seq : seq + 2].tolist()
        table = batch.block_tables[seq].tolist()
        for token in range(start, end):
            position = context_len - (end - token)
            for head in range(num_heads):
                kv_head = head * kv.shape[2] // num_heads
                query = example.query[token, head].double()
                weights, values = [], []
                for key in range(position + 1):
                    if sliding_window is not None and position - key >= sliding_window:
                        continue
                    if chunk is not None and key // chunk != position // chunk:
                        continue
                    slot = kv[table[key // block_size], :, kv_head, key % block_size]
                    score = float(query @ slot[0]) * scale
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    weights.append(math.exp(score))
                    values.append(slot[1])
                total = torch.tensor(weights, dtype=torch.float64)
                beside = 0.0 if sinks is None else math.exp(float(sinks[head]))
                output[token, head] = total @ torch.stack(values) / (total.sum() + beside)
    return output


@pytest.mark.parametrize("sliding_window", [None, 1, 5])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_equals_the_sum_that_defines_attention(
    sliding_window: int | None, softcap: float | None, chunk: int | None, with_sinks: bool
) -> None:
    example = paged([(7, 1), (9, 4), (3, 3)], num_heads=4, head_dim=8, block_size=4)
    sinks = drawn_sinks(4) if with_sinks else None
    actual = attend(
        example.query,
        example.kv,
        example.batch,
        scale=0.4,
        sliding_window=sliding_window,
        softcap=softcap,
        chunk=chunk,
        sinks=sinks,
        backend="reference",
    )
    expected = written_out(example, 0.4, sliding_window, softcap, chunk, sinks)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-6)


def test_write_fills_the_named_slots_and_no_other() -> None:
    kv = torch.zeros(3, 2, 2, 4, 8)
    key, value = torch.randn(2, 2, 2, 8)
    write_kv(key, value, kv, torch.tensor([11, 1]), backend="reference")
    assert torch.equal(kv[2, 0, :, 3], key[0])
    assert torch.equal(kv[0, 1, :, 1], value[1])
    kv[2, :, :, 3] = kv[0, :, :, 1] = 0
    assert not kv.any()
