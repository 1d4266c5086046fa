"""Our attention and others' on the same keys and values, timed in turns.

The others are torch's over contiguous keys, and FlashInfer's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from bench.kernels.batches import BLOCK_SIZE, Paged
from engine.run import stopwatch

Work = Callable[[], object]

_WARM_UPS = 3

_WORKSPACE_BYTES = 256 << 20


class Stopwatch:
    """Times work by its replays as a CUDA graph, with cold caches, side by side.

    A graph leaves out what a host takes to launch kernels; between replays the L2 cache is written
    over, so that nothing is found there that a step of a model would not find.
    """

    def __init__(self, seconds: float = 0.15) -> None:
        """Spend about `seconds` on each piece of work."""
        self._device = torch.device("cuda")
        size = torch.cuda.get_device_properties(self._device).L2_cache_size
        self._flushed = torch.empty(4 * size, dtype=torch.uint8, device=self._device)
        self._seconds = seconds

    def medians(self, replays: Sequence[Work]) -> list[float]:
        """Median seconds of each that `captured` returned, measured in turns: A B A B."""
        once = sum(self._time(replay) for replay in replays)
        rounds = max(5, min(50, int(self._seconds * len(replays) / max(once, 1e-6))))
        times = [[self._time(replay) for replay in replays] for _ in range(rounds)]
        return [statistics.median(each) for each in zip(*times, strict=True)]

    def _time(self, replay: Work) -> float:
        watch = stopwatch.Stopwatch(self._device)
        self._flushed.zero_()  # takes longer than the host needs to queue the replay
        watch.mark()
        replay()
        watch.mark()
        [seconds] = watch.seconds()
        return seconds


def captured(work: Work) -> Work:
    """The work as one graph, compiled and warm."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


@dataclass(frozen=True)
class Race:
    """Times our kernels and others' in turns, and remembers which of the others could not run."""

    watch: Stopwatch
    absent: dict[str, str] = field(default_factory=dict)
    """By name, why."""

    def medians(
        self,
        own: Sequence[Work],
        others: Mapping[str, Callable[[Paged], Work]],
        example: Paged,
    ) -> tuple[list[float], dict[str, float]]:
        """Median seconds of our work, and by their names of the others' that ran on `example`."""
        replays = [captured(work) for work in own]
        names = []
        for name, make in others.items():
            try:
                replays.append(captured(make(example)))
            except Exception as error:  # noqa: BLE001 - absent, or whatever others' packages raise
                self.absent.setdefault(name, described(error))
            else:
                names.append(name)
        seconds = self.watch.medians(replays)
        return seconds[: len(own)], dict(zip(names, seconds[len(own) :], strict=True))


def described(error: Exception) -> str:
    """Its type and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def sdpa(example: Paged) -> Work:
    """`scaled_dot_product_attention` over contiguous copies of the keys, causal for chunks."""
    batch = example.batch
    queries = batch.max_query_len
    num_seqs, context = batch.block_tables.shape[0], batch.max_context_len
    gathered = example.kv[batch.block_tables.long()]  # [seqs, blocks, 2, heads, tokens, dim]
    key, value = (
        gathered[:, :, side].transpose(1, 2).flatten(2, 3)[:, :, :context].contiguous()
        for side in (0, 1)
    )
    del gathered
    query = example.query.view(num_seqs, queries, *example.query.shape[1:])
    behind_others = 1 < queries < context
    return partial(
        functional.scaled_dot_product_attention,
        query.transpose(1, 2).contiguous(),
        key,
        value,
        attn_mask=causal_lower_right(queries, context) if behind_others else None,
        is_causal=1 < queries == context,
        enable_gqa=True,
    )


def flashinfer_decode(example: Paged) -> Work:
    """FlashInfer's decode over the same blocks."""
    import flashinfer

    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(example), "HND", use_tensor_cores=True
    )
    tables = example.batch.block_tables
    wrapper.plan(*_pages(tables), *_shape(example), **_types(example))
    return partial(wrapper.run, example.query, example.kv)


def flashinfer_prefill(example: Paged) -> Work:
    """FlashInfer's prefill over the same blocks, the queries behind what is cached."""
    import flashinfer

    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_workspace(example), "HND")
    batch = example.batch
    pages = _pages(batch.block_tables)
    wrapper.plan(batch.query_starts, *pages, *_shape(example), causal=True, **_types(example))
    return partial(wrapper.run, example.query, example.kv)


def flashinfer_cascade(example: Paged) -> Work:
    """FlashInfer's attention in two levels, the shared prefixes and what each goes on with."""
    import flashinfer

    batch, groups = example.batch, example.batch.groups
    assert groups is not None
    shared = int(groups.ends[0]) // BLOCK_SIZE  # the same of all
    first_members = groups.members[groups.member_starts[:-1].long()].long()
    levels = [
        _pages(batch.block_tables[first_members, :shared]),
        _pages(batch.block_tables[:, shared:]),
    ]
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, _workspace(example), "HND")
    wrapper.plan(
        [groups.member_starts, batch.query_starts],
        *(list(part) for part in zip(*levels, strict=True)),
        *_shape(example),
        q_data_type=example.query.dtype,
    )
    return partial(wrapper.run, example.query, example.kv)


def _pages(tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where each row's pages begin in the list of all, that list, and the tokens of the last ones.

    All blocks of the bench are full.
    """
    rows, blocks = tables.shape
    starts = torch.arange(rows + 1, dtype=torch.int32, device=tables.device) * blocks
    full = torch.full((rows,), BLOCK_SIZE, dtype=torch.int32, device=tables.device)
    return starts, tables.flatten().contiguous(), full


def _shape(example: Paged) -> tuple[int, int, int, int]:
    _, num_heads, head_dim = example.query.shape
    return num_heads, example.kv.shape[2], head_dim, BLOCK_SIZE


def _types(example: Paged) -> dict[str, Any]:
    return {"q_data_type": example.query.dtype, "kv_data_type": example.kv.dtype}


def _workspace(example: Paged) -> Tensor:
    return torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=example.kv.device)
