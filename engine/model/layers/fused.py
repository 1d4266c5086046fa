"""Decoder layers of few calls: one generic layer in place of a family's own modules.

What a family's modules do in dozens of small operations a layer does here in seven: norm with the
residual sum, one product for queries, keys and values, rotation with the cache write, attention,
one product back, one for gate and up with the activation between, one down. In place of the last
two there may be experts, and a router before them. On a CPU the compiled library does them all in
one call. `engine.model.layers.families` says which weights and options a model has; the arithmetic
is in `kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.batch.batch import Batch
from engine.batch.pictures import SeenRows
from engine.model.layers.description import Description
from engine.model.layers.families import describe
from engine.model.layers.layout import AttentionCall
from engine.model.layers.linear_places import Places, fused_places
from engine.model.layers.packing import Packer, release
from engine.model.layers.shard import Shard, cut
from engine.model.layers.turning import SPARE_ROWS, tables_of, turn, with_spare_rows
from kernels.adapters import adapt
from kernels.attention import attend
from kernels.experts import add_shared, route
from kernels.layers import add_rms_norm, gate, product_number, rotate_and_write, stack
from kernels.types import (
    AdaptedRows,
    AttentionBatch,
    DecoderLayer,
    Dense,
    Experts,
    LayerCaches,
    LayerOptions,
    Mixture,
    Norm,
    Quantization,
)


class FusedDecoder:
    """A model of a known family, on packed weights.

    A forward pass has no host synchronisation, and shapes that depend on the numbers of tokens and
    of logit rows only: a decode step can be captured in a CUDA graph.
    """

    def __init__(
        self,
        description: Description,
        quantization: Quantization,
        batch_invariant: bool,
        shard: Shard | None = None,
        linears: Sequence[Places] = ({},),
        axes: Tensor | None = None,
    ) -> None:
        """Pack the weights of `description`, and take each from its module once it is packed.

        With a `shard` it is the part of that rank (`engine.model.layers.shard`). Adapters may
        change the `linears`, which each rank has its part of. With `axes`, [head_dim / 2], its
        rotary tables have rows to spare (`engine.model.layers.turning`).
        """
        self.linears = linears
        self._axes = axes
        self._tables = tables_of(description)
        self.num_places = len(self._tables[0]) - (0 if axes is None else SPARE_ROWS)
        """By which tokens are turned that stand for no picture."""
        self._dtype = description.embedding.weight.dtype
        packer = Packer(quantization, batch_invariant, self._dtype, shard)
        self._embedding_scale = description.embedding_scale
        self._activation = description.activation
        self._layers = [packer.layer(layer) for layer in description.layers]
        self.num_layers = len(self._layers)
        self._norm = description.norm
        self._long_row = description.long_row
        self._softcap = description.softcap
        self._embedding = _own_table(description.embedding.weight.detach())
        self.hidden_size = self._embedding.shape[1]
        """The width of the residual stream."""
        self._head = packer.head(description.head)
        self._shard = shard
        self._stack = None if shard is not None else stack(self._layers, self._activation)
        release(description.embedding)

    @property
    def experts(self) -> list[Experts]:
        """Of each layer that has some."""
        networks = [layer.network for layer in self._layers]
        return [one.experts for one in networks if isinstance(one, Mixture)]

    @contextmanager
    def windows_of(self, longest: int) -> Iterator[None]:
        """Let no layer that has a window see more than so many tokens, for a while."""
        layers, whole = self._layers, self._stack
        self._layers = [_windowed(layer, longest) for layer in layers]
        self._stack = None if whole is None else stack(self._layers, self._activation)
        try:
            yield
        finally:
            self._layers, self._stack = layers, whole

    def forward(self, batch: Batch, caches: LayerCaches) -> Tensor:
        """See `EagerDecoder`."""
        residual, seen = self.embed(batch.token_ids), batch.seen
        if seen is not None:
            residual.index_copy_(0, seen.rows, seen.values)
            if seen.turned is not None and self._axes is not None:
                turn(self._tables, self.num_places, seen.turned, self._axes)
        places = self.places(batch)
        is_whole = seen is None or (seen.deep is None and not seen.mutual)
        if self._stack is None or not is_whole:
            update = self._run_layers(residual, places, caches, batch.columns, batch.adapted, seen)
        else:
            update = self._stack.run(residual, places, caches, batch.columns, batch.adapted)
        return self.logits(residual, update, batch.logit_rows)

    def places(self, batch: Batch) -> Tensor:
        """The rows of rotary tables that tokens are turned by: [num_tokens] int64."""
        if self._long_row is None or batch.is_long is None:
            return batch.positions
        return batch.positions + self._long_row * batch.is_long

    def embed(self, token_ids: Tensor) -> Tensor:
        """The residual stream before the first layer: [num_tokens, hidden_size]."""
        rows = self._embedding.index_select(0, token_ids).to(self._dtype)
        return rows if self._embedding_scale == 1 else rows.mul_(self._embedding_scale)

    def _run_layers(
        self,
        residual: Tensor,
        places: Tensor,
        caches: LayerCaches,
        columns: Sequence[AttentionBatch],
        adapted: Sequence[AdaptedRows],
        seen: SeenRows | None = None,
    ) -> Tensor:
        """Add all updates to the residual stream but the last layer's, and return that one."""
        deep = () if seen is None or seen.deep is None else seen.deep
        update: Tensor | None = None
        for index, (kv, column) in enumerate(zip(caches.views, caches.columns, strict=True)):
            batch = columns[column]
            query = self.before_attention(index, residual, update, places, kv, batch.slots, adapted)
            attended = self.attend(index, query, kv, batch)
            update = self.after_attention(index, residual, attended, adapted)
            if seen is not None and index < len(deep):
                residual.index_add_(0, seen.rows, deep[index])
        assert update is not None
        return update

    def before_attention(
        self,
        index: int,
        residual: Tensor,
        update: Tensor | None,
        places: Tensor,
        kv: Tensor,
        slots: Tensor,
        adapted: Sequence[AdaptedRows] = (),
    ) -> Tensor:
        """Add `update`, the last layer's, to the residual stream; write a layer's KV.

        `places` are as `places` gives them. Returns the layer's queries, [num_tokens, num_heads,
        head_dim].
        """
        layer = self._layers[index]
        options = layer.options
        head_norm = options.query_norm or options.key_norm
        seen = _sum(residual, update, options.before_attention)
        qkv = layer.qkv(seen)
        adapt(seen, qkv, adapted, product_number(index, "qkv"))
        _norm_jointly(qkv, options)
        return rotate_and_write(
            qkv,
            options.rotation.cos,
            options.rotation.sin,
            places,
            kv,
            slots,
            options.num_heads,
            options.num_kv_heads,
            None if options.query_norm is None else options.query_norm.weight,
            None if options.key_norm is None else options.key_norm.weight,
            0.0 if head_norm is None else head_norm.eps,
        )

    def attend(
        self,
        index: int,
        query: Tensor,
        kv: Tensor,
        batch: AttentionBatch,
        output: Tensor | None = None,
    ) -> Tensor:
        """A layer's attention, [num_tokens, num_heads, head_dim], in `output` if that is given."""
        options = self._layers[index].options
        return attend(
            query,
            kv,
            batch,
            scale=options.scale,
            sliding_window=options.sliding_window,
            softcap=options.softcap,
            sinks=options.sinks,
            output=output,
        )

    def after_attention(
        self,
        index: int,
        residual: Tensor,
        attended: Tensor,
        adapted: Sequence[AdaptedRows] = (),
    ) -> Tensor:
        """Add what a layer's attention found to the residual stream.

        Returns its last update, [num_tokens, hidden_size], which the next one adds.
        """
        layer = self._layers[index]
        options = layer.options
        attended = attended.flatten(1)
        update = layer.out(attended)
        adapt(attended, update, adapted, product_number(index, "out"))
        update = self._of_all_ranks(update)
        update = _normed(update, options.after_attention)
        if options.is_parallel:
            seen = _sum(residual, None, options.before_mlp)
            residual += update
        else:
            seen = _sum(residual, update, options.before_mlp)
        through = self._through(layer.network, seen, options.is_plain, index, adapted)
        update = self._of_all_ranks(through)
        return _normed(update, options.after_mlp)

    def _of_all_ranks(self, part: Tensor) -> Tensor:
        """What is added to the residual stream, by what this rank has of it."""
        return part if self._shard is None else self._shard.sum(part)

    def _through(
        self,
        network: Dense | Mixture,
        x: Tensor,
        is_plain: bool,
        index: int,
        adapted: Sequence[AdaptedRows],
    ) -> Tensor:
        """What the network of layer `index` makes of `x`."""
        if isinstance(network, Dense):
            gate_up = network.gate_up(x)
            adapt(x, gate_up, adapted, product_number(index, "gate_up"))
            gated = gate(gate_up, self._activation, is_plain)
            update = network.down(gated)
            adapt(gated, update, adapted, product_number(index, "down"))
            return update
        wide = x.float()
        chosen = route(network.router(wide), network.routing)
        numbers = (
            product_number(index, "experts_gate_up"),
            product_number(index, "experts_down"),
        )
        update = network.experts(x, *chosen, adapted, numbers)
        if network.shared is not None:
            gates = None if network.shared_gate is None else network.shared_gate(wide)
            shared = self._through(network.shared, x, is_plain, index, adapted)
            add_shared(update, shared, gates)
        return update

    def logits(self, residual: Tensor, update: Tensor, rows: Tensor) -> Tensor:
        """Of some tokens, behind the last layer: [num_rows, vocab_size]."""
        last = residual.index_select(0, rows)
        logits = self._head(_sum(last, update.index_select(0, rows), self._norm))
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits


def _windowed(layer: DecoderLayer, longest: int) -> DecoderLayer:
    window = layer.options.sliding_window
    if window is None or window <= longest:
        return layer
    return replace(layer, options=replace(layer.options, sliding_window=longest))


def _sum(residual: Tensor, update: Tensor | None, norm: Norm | None) -> Tensor:
    """The residual stream with `update`, added in place, through the norm if there is one."""
    if norm is not None:
        return add_rms_norm(residual, update, norm.weight, norm.eps, norm.bias, norm.centres)
    return residual if update is None else residual.add_(update)


def _normed(update: Tensor, norm: Norm | None) -> Tensor:
    return _sum(update, None, norm)


def _norm_jointly(qkv: Tensor, options: LayerOptions) -> None:
    """Norm, in place, what all query heads make up, and what all key heads do."""
    start = 0
    for norm in options.joint_norms or ():
        part = qkv[:, start : start + len(norm.weight)]
        part.copy_(_normed(part, norm))
        start += len(norm.weight)


def fuse(
    model: PreTrainedModel,
    calls: Sequence[AttentionCall],
    max_positions: int | None = None,
    *,
    quantization: Quantization = "none",
    batch_invariant: bool = False,
    shard: Shard | None = None,
    axes: Tensor | None = None,
) -> FusedDecoder:
    """Fuse `model`, whose layers ask `calls` of their attention; its own weights are given up.

    Contexts end where the model's do, or at `max_positions`. Of a `shard` only that part is kept.
    For `axes` see `FusedDecoder`.
    Raises `Unfamiliar`, with the model still whole, where it is not of a known family, and
    `EngineError` where it cannot be cut.
    """
    description = describe(model, calls, max_positions)
    if axes is not None:
        description = with_spare_rows(description)
    if shard is None:
        linears = [fused_places(model, description)]
        return FusedDecoder(description, quantization, batch_invariant, linears=linears, axes=axes)
    ranks = [Shard(rank, shard.size) for rank in range(shard.size)]
    linears = [fused_places(model, description, rank) for rank in ranks]
    return FusedDecoder(cut(description, shard), quantization, batch_invariant, shard, linears)


def _own_table(table: Tensor) -> Tensor:
    """The embedding, which a step reads a few rows of, beside the head's packed copy of it.

    On a CPU in bfloat16 where that loses nothing, as in models that were stored so; and copied, or
    it would keep all of a checkpoint mapped that it is a part of.
    """
    if table.device.type != "cpu":
        return table
    narrow = table.to(torch.bfloat16)
    if not torch.equal(narrow.to(table.dtype), table):
        narrow = table
    return narrow.clone() if narrow.data_ptr() == table.data_ptr() else narrow
