"""The reference is checked against sums written out key by key."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention import attend, write_kv
from kernels.backends import Backend
from kernels.reference import attention as reference
from kernels.types import Mutual
from tests.kernels.batches import Paged, drawn_sinks, paged
from tests.kernels.test_attention import BACKENDS


def written_out(
    example: Paged,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of every query and head as the sum that defines it."""
    seen_up_to = {
        one.first_token + at: one.end
        for one in example.batch.mutual
        for at in range(one.num_queries)
    }
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
                for key in range(seen_up_to.get(token, position + 1)):
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


@pytest.mark.parametrize("sliding_window", [None, 1, 3, 5])
@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("in_windows", [False, True])
@pytest.mark.parametrize("most_scores", [1, 50, 1 << 24])
@pytest.mark.parametrize("backend", BACKENDS)
def test_queries_that_see_each_other_see_all_up_to_the_last(
    sliding_window: int | None,
    chunk: int | None,
    in_windows: bool,
    most_scores: int,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attend_some, scores = reference._attend, list[int]()

    def counted(query: Tensor, keys: Tensor, *others: Any) -> Tensor:
        scores.append(query.shape[0] * query.shape[1] * keys.shape[1])
        return attend_some(query, keys, *others)

    monkeypatch.setattr(reference, "_MOST_SCORES", most_scores)
    monkeypatch.setattr(reference, "_attend", counted)
    example = paged([(7, 1), (12, 9), (8, 6)], num_heads=4, head_dim=8, block_size=4)
    mutual = (Mutual(1, 2, 3, 4, 7), Mutual(1, 6, 2, 8, 10), Mutual(2, 11, 1, 3, 8))
    without = example.batch
    example = replace(example, batch=replace(without, mutual=mutual, mutual_in_windows=in_windows))
    actual = attend(
        example.query,
        example.kv,
        example.batch,
        scale=0.4,
        sliding_window=sliding_window,
        softcap=2.0,
        chunk=chunk,
        sinks=drawn_sinks(4),
        backend=backend,
    )
    assert max(scores, default=0) <= max(most_scores, 4 * 12)  # of a query with all its keys
    if in_windows and sliding_window is None:
        example = replace(example, batch=without)
    expected = written_out(example, 0.4, sliding_window, 2.0, chunk, drawn_sinks(4))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_write_fills_the_named_slots_and_no_other() -> None:
    kv = torch.zeros(3, 2, 2, 4, 8)
    key, value = torch.randn(2, 2, 2, 8)
    write_kv(key, value, kv, torch.tensor([11, 1]), backend="reference")
    assert torch.equal(kv[2, 0, :, 3], key[0])
    assert torch.equal(kv[0, 1, :, 1], value[1])
    kv[2, :, :, 3] = kv[0, :, :, 1] = 0
    assert not kv.any()
