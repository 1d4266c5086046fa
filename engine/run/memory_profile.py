"""What the largest step takes of a GPU's memory, found by computing it once, at start.

What the KV cache does not take is for that: activations of as many tokens as a step may have, and
logits of as many rows, with everything that choosing their tokens may ask for.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch

from engine.api import EngineRequest, Namespaces, SamplingParams
from engine.batch.batch import pack
from engine.blocks.hashing import KEY_BYTES
from engine.blocks.pool import BlockPool
from engine.blocks.table import BlockTable
from engine.constraint.masks import RowMasks
from engine.model.kv_memory import Needs
from engine.model.layers.paged_model import PagedModel
from engine.model.step_size import StepSize
from engine.run.graphs.padding import padded_groups, tensors_of, with_tensors
from engine.run.graphs.recording import DeviceMemory, Graphs
from engine.run.sampler import sample
from engine.sequences.plan import Draw
from engine.sequences.sequence import Sequence

_LOGPROBS = 20
"""As many alternatives as a request may ask for."""


def profile(
    model: PagedModel,
    size: StepSize,
    longest: int,
    memory: DeviceMemory,
    graphs: abc.Sequence[Callable[[], Graphs | None]],
) -> Needs:
    """Compute the largest step, and record the two largest of each of `graphs`, on blocks of their
    own, which are gone afterwards.

    What `graphs` make writes to page 0 and to page 1 at most. For `longest` see
    `compute_largest_step`.
    """
    model.allocate(2)
    step = memory.peak(lambda: compute_largest_step(model, size, longest))
    recorded = sum(_graph_bytes(make, memory) for make in graphs)
    model.allocate(0)
    return Needs(memory.total, memory.used(), step, recorded)


def _graph_bytes(make: Callable[[], Graphs | None], memory: DeviceMemory) -> int:
    """What all sizes take: the largest has the temporary memory of all, the others are alike."""
    before = memory.used()
    graphs = make()
    if graphs is None:
        return 0
    costs = list(graphs.record(most_sizes=2).values())
    found = memory.used() - before
    return max(0, found) + (costs[-1] * (graphs.num_sizes - len(costs)) if costs else 0)


@torch.inference_mode()
def compute_largest_step(model: PagedModel, size: StepSize, longest: int) -> None:
    """Prompts beside as many sequences as may decode; all of them draw, with every option.

    `model` needs memory for one page, in which all of them lie: their values are wrong, their
    shapes are right. `longest` tokens are the most that one may have.
    """
    lengths = _lengths(size, longest)
    num_blocks = -(-max(lengths) // model.block_size)
    rows, pages = len(lengths), np.zeros((model.pages.num_columns, num_blocks), np.int32)
    parts = [([0] * length, 0, length, pages) for length in lengths]
    drawing = [end - 1 for end in accumulate(lengths)]
    batch = pack(parts, drawing, model.block_size, model.device)
    attention = replace(batch.attention, max_context_len=longest)
    if not model.batch_invariant:
        groups = padded_groups(None, rows)
        tensors = [tensor.to(model.device) for tensor in tensors_of(groups)]
        attention = replace(attention, groups=with_tensors(groups, tensors))
    batch = replace(batch, attention=attention)
    logits = model.forward(batch)
    newest = batch.token_ids.index_select(0, batch.logit_rows)
    draws = [Draw(_demanding(model.block_size)) for _ in range(rows)]
    sample(logits, draws, newest, masks=_masks(rows, logits.shape[1])).result()


def _masks(rows: int, vocab_size: int) -> RowMasks:
    """Of all rows but the first: scores are copied for it."""
    words = np.full((rows - 1, -(-vocab_size // 32)), -1, np.int32)
    return RowMasks(np.arange(-1, rows - 1), words, {}, frozenset())


def _lengths(size: StepSize, longest: int) -> list[int]:
    """How much is computed of each sequence: one token first, and behind those whole prompts."""
    lengths = [1] * min(size.sequences, size.tokens)
    left = size.tokens - len(lengths)
    for row in reversed(range(len(lengths))):
        more = min(left, longest - 1)
        lengths[row] += more
        left -= more
    return lengths


def _demanding(block_size: int) -> Sequence:
    """A sequence whose tokens are chosen with everything that takes memory."""
    key = bytes(KEY_BYTES)
    namespaces = Namespaces(shared_key=key, private_key=key)
    request = EngineRequest(
        request_id="",
        tenant="",
        prompt=[0, 0],
        namespaces=namespaces,
        sampling=SamplingParams(
            max_tokens=1,
            top_p=0.9,
            top_k=100,
            repetition_penalty=1.1,
            frequency_penalty=0.1,
            presence_penalty=0.1,
            logit_bias={0: 1.0},
            logprobs=_LOGPROBS,
        ),
    )
    table = BlockTable(BlockPool(1), block_size, "", namespaces, b"", up_to=0)
    return Sequence(request, table)
