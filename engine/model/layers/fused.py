"""Decoder layers of few calls: one generic layer in place of a family's own modules.

What a family's modules do in dozens of small operations a layer does here in seven: norm with the
residual sum, one product for queries, keys and values, rotation with the cache write, attention,
one product back, one for gate and up with the activation between, one down. On a CPU the compiled
library does them all in one call. `engine.model.layers.families` says which weights and options a
model has; the arithmetic is in `kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.batch.batch import Batch
from engine.model.checkpoints.coded_linear import CodedLinear, Product
from engine.model.layers.families import Description, LayerDescription, describe
from engine.model.layers.layout import AttentionCall
from engine.model.layers.shard import Gathered, Shard, Summed, cut
from kernels.attention import attend
from kernels.layers import add_rms_norm, gate, rotate_and_write, stack
from kernels.linear import pack, pack_groups
from kernels.types import (
    AttentionBatch,
    DecoderLayer,
    LayerCaches,
    LayerOptions,
    Linear,
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
    ) -> None:
        """Pack the weights of `description`, and take each from its module once it is packed.

        With a `shard` it is the part of that rank (`engine.model.layers.shard`).
        """
        self._dtype = description.embedding.weight.dtype
        packer = _Packer(quantization, batch_invariant, self._dtype, shard)
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
        self._stack = stack(self._layers, self._activation)
        _release(description.embedding)

    def forward(self, batch: Batch, caches: LayerCaches) -> Tensor:
        """See `EagerDecoder`."""
        residual = self.embed(batch.token_ids)
        run = self._run_layers if self._stack is None else self._stack.run
        update = run(residual, self.places(batch), caches, batch.columns)
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
    ) -> Tensor:
        """Add all updates to the residual stream but the last layer's, and return that one."""
        update: Tensor | None = None
        for index, (kv, column) in enumerate(zip(caches.views, caches.columns, strict=True)):
            batch = columns[column]
            query = self.before_attention(index, residual, update, places, kv, batch.slots)
            attended = self.attend(index, query, kv, batch)
            update = self.after_attention(index, residual, attended)
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
    ) -> Tensor:
        """Add `update`, the last layer's, to the residual stream; write a layer's KV.

        `places` are as `places` gives them. Returns the layer's queries, [num_tokens, num_heads,
        head_dim].
        """
        layer = self._layers[index]
        options = layer.options
        head_norm = options.query_norm or options.key_norm
        qkv = layer.qkv(_sum(residual, update, options.before_attention))
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
            output=output,
        )

    def after_attention(self, index: int, residual: Tensor, attended: Tensor) -> Tensor:
        """Add what a layer's attention found to the residual stream.

        Returns its last update, [num_tokens, hidden_size], which the next one adds.
        """
        layer = self._layers[index]
        options = layer.options
        update = _normed(layer.out(attended.flatten(1)), options.after_attention)
        if options.is_parallel:
            seen = _sum(residual, None, options.before_mlp)
            residual += update
        else:
            seen = _sum(residual, update, options.before_mlp)
        update = layer.down(gate(layer.gate_up(seen), self._activation, options.is_plain))
        return _normed(update, options.after_mlp)

    def logits(self, residual: Tensor, update: Tensor, rows: Tensor) -> Tensor:
        """Of some tokens, behind the last layer: [num_rows, vocab_size]."""
        last = residual.index_select(0, rows)
        logits = self._head(_sum(last, update.index_select(0, rows), self._norm))
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits


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
) -> FusedDecoder:
    """Fuse `model`, whose layers ask `calls` of their attention; its own weights are given up.

    Contexts end where the model's do, or at `max_positions`. Of a `shard` only that part is kept.
    Raises `Unfamiliar`, with the model still whole, where it is not of a known family, and
    `EngineError` where it cannot be cut.
    """
    description = describe(model, calls, max_positions)
    if shard is not None:
        description = cut(description, shard)
    return FusedDecoder(description, quantization, batch_invariant, shard)


class _Packer:
    """Packs products one after the other, so that at no time two copies of all weights exist."""

    def __init__(
        self,
        quantization: Quantization,
        batch_invariant: bool,
        dtype: torch.dtype,
        shard: Shard | None,
    ) -> None:
        self._quantization = quantization
        self._batch_invariant = batch_invariant
        self._dtype = dtype
        self._shard = shard

    def head(self, part: Product) -> Linear:
        """Never in 4 bits: roundings of logits reach the tokens at once."""
        width = part.out_features  # a cut leaves that of the whole
        kind: Quantization = "int8" if self._quantization == "int4" else self._quantization
        product = self.product([part], kind)
        return product if self._shard is None else Gathered(product, width, self._shard)

    def update(self, part: Product) -> Linear:
        """What is added to the residual stream: with a shard, of all ranks."""
        product = self.product([part])
        return product if self._shard is None else Summed(product, self._shard)

    def product(self, parts: Sequence[Product], quantization: Quantization | None = None) -> Linear:
        biases = [None if part.bias is None else part.bias.detach() for part in parts]
        coded = [part for part in parts if isinstance(part, CodedLinear)]
        if len(coded) == len(parts):
            groups = [part.read() for part in coded]
            packed = pack_groups(groups, biases, batch_invariant=self._batch_invariant)
        else:
            packed = pack(
                [self._plain(part) for part in parts],
                biases,
                quantization=quantization or self._quantization,
                batch_invariant=self._batch_invariant,
            )
        for part in parts:
            _release(part)
        return packed

    def _plain(self, part: Product) -> Tensor:
        """Its weight; of one in codes too, which a plain one is stacked with."""
        if isinstance(part, CodedLinear):
            return part.read().dequantize().to(self._dtype)
        return part.weight.detach()

    def layer(self, layer: LayerDescription) -> DecoderLayer:
        if layer.head_order is not None:
            for part in layer.qkv[:2]:
                _reorder(part, layer.head_order)
        return DecoderLayer(
            options=layer.options,
            qkv=self.product(layer.qkv),
            out=self.update(layer.out),
            gate_up=self.product(layer.gate_up),
            down=self.update(layer.down),
        )


def _reorder(product: Product, order: Tensor) -> None:
    """Put the outputs of each head in this order: [head_dim], places of them."""
    if isinstance(product, CodedLinear):
        read, rows = product.read, _reordered(product.out_features, order)
        product.read = lambda: read().take(rows)
    else:
        rows = _reordered(len(product.weight), order)
        product.weight = nn.Parameter(product.weight.detach()[rows], requires_grad=False)
    if product.bias is not None:
        product.bias = nn.Parameter(product.bias.detach()[rows], requires_grad=False)


def _reordered(num_rows: int, order: Tensor) -> Tensor:
    """The rows of all heads in the order of each: [num_rows], places of them."""
    return torch.arange(num_rows, device=order.device).view(-1, len(order))[:, order].flatten()


def _release(module: nn.Module) -> None:
    for name in list(module._parameters):
        setattr(module, name, None)


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
