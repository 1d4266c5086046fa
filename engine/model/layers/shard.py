"""One rank's part of a model, and how the ranks put together what each has computed.

Each rank has some of the heads and some of the feed-forward network's inner width ("Megatron-LM",
Shoeybi et al. 2019, section 3): products into them are cut by outputs, products out of them by
inputs, and the results of the latter are summed over all ranks, twice a layer. The logits are cut
by the vocabulary, and the first rank gathers them. All else is the same on every rank. Where the
modules are the model's own, every product is cut by outputs, which all ranks gather
(`engine.model.layers.eager.products`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import pad

from engine.api import EngineError
from engine.model.checkpoints.coded_linear import CodedLinear, Product
from engine.model.layers.description import (
    DenseDescription,
    Description,
    ExpertsDescription,
    LayerDescription,
    Matrix,
    MixtureDescription,
)
from kernels.types import Linear
from kernels.weight_format import GroupedWeight

_PATIENCE = timedelta(minutes=10)
"""For a rank that neither answers nor ends."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank, of so many; the first one is 0."""

    rank: int
    size: int

    def part(self, total: int) -> slice:
        """This rank's of `total` things in a row; the first ranks may have one more."""
        share, rest = divmod(total, self.size)
        start = self.rank * share + min(self.rank, rest)
        return slice(start, start + share + (self.rank < rest))

    def count(self, total: int) -> int:
        """How many of `total` things are this rank's."""
        return len(range(total)[self.part(total)])

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, on every rank, with the same bits.

        Always in the order of the ranks, which a ring does not keep: there, in which order a row is
        summed depends on the rows beside it.
        """
        return self._of_all(part).sum(0)

    def gather(self, part: Tensor, *, on_all: bool) -> Tensor:
        """All ranks' columns side by side, on all ranks, or on the first one alone: then the others
        keep what they have.
        """
        if on_all:
            return torch.cat(self._of_all(part).unbind(), dim=1)
        if self.rank:
            distributed.gather(part.contiguous(), dst=0)
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        distributed.gather(part.contiguous(), parts, dst=0)
        return torch.cat(parts, dim=1)

    def _of_all(self, part: Tensor) -> Tensor:
        """All ranks' parts, [ranks, ...], on every rank."""
        parts = part.new_empty((self.size, *part.shape))
        distributed.all_gather(list(parts.unbind()), part.contiguous())
        return parts


def join(shard: Shard, meeting: Path) -> None:
    """Meet the other ranks, in a file that all of them can write; on return nobody needs it.

    They talk on this machine's loopback. A process is of one such group at a time.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=meeting.as_uri(),
        rank=shard.rank,
        world_size=shard.size,
        timeout=_PATIENCE,
    )
    distributed.barrier()  # none reads the file any more


def leave() -> None:
    """End what `join` has begun."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


class Gathered:
    """A product that is cut by its outputs, which all ranks gather or the first one; a `Linear`."""

    def __init__(
        self, product: Linear, out_features: int, shard: Shard, *, on_all: bool = False
    ) -> None:
        self._product = product
        self._shard = shard
        self._on_all = on_all
        self.in_features = product.in_features
        self.out_features = out_features
        self.nbytes = product.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`; where the first rank gathers, the others have their own columns alone."""
        if not len(x):  # of a step that draws nothing
            return x.new_empty((0, self.out_features))
        gathered = self._shard.gather(self._product(x), on_all=self._on_all)
        return gathered[:, : self.out_features]


def cut(description: Description, shard: Shard) -> Description:
    """The rank's part of a model, whose modules keep that part alone.

    Raises `EngineError`, naming `tensor_parallel`, for what cannot be cut.
    """
    layers = [_layer(layer, shard) for layer in description.layers]
    keep_equal_outputs(_plain(description.head), shard)
    return replace(description, layers=layers)


def input_widths(description: Description, size: int) -> dict[nn.Module, list[int]]:
    """How many inputs each of so many ranks has, of the products that are cut by them: of experts,
    those behind their activation.

    Raises `EngineError` as `cut` does.
    """
    found: dict[nn.Module, list[int]] = {}
    for layer in description.layers:
        require_heads(layer.options.num_kv_heads, Shard(0, size))
        group = _plain(layer.out).in_features // layer.options.num_kv_heads
        found[layer.out] = [group * count for count in _counts(layer.options.num_kv_heads, size)]
        for dense in _dense_parts(layer.network):
            found[dense.down] = _counts(_plain(dense.down).in_features, size)
        if isinstance(layer.network, MixtureDescription):
            experts = layer.network.experts
            inter = _plain_matrix(experts.down[0]).shape[1]
            found[experts.module] = _counts(inter, size)
    return found


def _dense_parts(network: DenseDescription | MixtureDescription) -> Iterator[DenseDescription]:
    part = network if isinstance(network, DenseDescription) else network.shared
    if part is not None:
        yield part


def _counts(total: int, size: int) -> list[int]:
    return [Shard(rank, size).count(total) for rank in range(size)]


def _layer(layer: LayerDescription, shard: Shard) -> LayerDescription:
    options = layer.options
    num_heads, num_kv_heads = options.num_heads, options.num_kv_heads
    require_heads(num_kv_heads, shard)
    if options.joint_norms is not None:
        raise EngineError("tensor_parallel: norms over all heads together cannot be cut")
    rows, queries = attention_part(layer, shard)
    _keep_outputs(layer.qkv, rows)
    _keep_inputs(_plain(layer.out), queries, shard)
    network = _network(layer.network, shard)
    heads_of_group, count = num_heads // num_kv_heads, shard.count(num_kv_heads)
    own = _times(shard.part(num_kv_heads), heads_of_group)
    sinks = None if options.sinks is None else options.sinks[own]
    options = replace(options, num_heads=count * heads_of_group, num_kv_heads=count, sinks=sinks)
    return replace(layer, options=options, network=network)


def attention_part(layer: LayerDescription, shard: Shard) -> tuple[list[Tensor], slice]:
    """Which outputs a rank has, of each product before a whole layer's attention, and which inputs
    of the one behind it.
    """
    num_heads, num_kv_heads = layer.options.num_heads, layer.options.num_kv_heads
    own = shard.part(num_kv_heads)
    head_dim = _plain(layer.out).weight.shape[1] // num_heads
    # The query heads of a KV head lie side by side, and stay with it.
    heads_of_group = num_heads // num_kv_heads
    queries, keys = _times(own, heads_of_group * head_dim), _times(own, head_dim)
    widths = [num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim]
    return _output_places(len(layer.qkv), widths, [queries, keys, keys]), queries


def dense_part(network: DenseDescription, shard: Shard) -> tuple[list[Tensor], slice]:
    """The same of a whole feed-forward network: before its activation, and behind it."""
    inter = _plain(network.down).weight.shape[1]
    inner = shard.part(inter)
    halves = sum(len(_plain(part).weight) for part in network.gate_up) // inter
    return _output_places(len(network.gate_up), [inter] * halves, [inner] * halves), inner


def _network(
    network: DenseDescription | MixtureDescription, shard: Shard
) -> DenseDescription | MixtureDescription:
    """All ranks choose the same experts, and each has a part of every one."""
    if isinstance(network, DenseDescription):
        return _dense(network, shard)
    shared = None if network.shared is None else _dense(network.shared, shard)
    return replace(network, experts=_experts(network.experts, shard), shared=shared)


def _dense(network: DenseDescription, shard: Shard) -> DenseDescription:
    rows, inner = dense_part(network, shard)
    _keep_outputs(network.gate_up, rows)
    _keep_inputs(_plain(network.down), inner, shard)
    return network


def _experts(experts: ExpertsDescription, shard: Shard) -> ExpertsDescription:
    """What is summed over all ranks has the biases of the first one."""
    module, inter = experts.module, _plain_matrix(experts.down[0]).shape[1]
    inner = shard.part(inter)
    rows = torch.arange(inter)[inner]
    rows = torch.cat([rows, inter + rows])
    kept = {
        "gate_up_proj": [matrix[rows] for matrix in map(_plain_matrix, experts.gate_up)],
        "down_proj": [matrix[:, inner] for matrix in map(_plain_matrix, experts.down)],
    }
    if experts.gate_up_biases is not None:
        kept["gate_up_proj_bias"] = [bias[rows] for bias in experts.gate_up_biases]
    for name, parts in kept.items():
        setattr(module, name, nn.Parameter(torch.stack(parts), requires_grad=False))
    if shard.rank and experts.down_biases is not None:
        module.down_proj_bias = None
    return ExpertsDescription(module, is_transposed=False)


def require_heads(num_kv_heads: int, shard: Shard) -> None:
    """Raise `EngineError` unless there is a KV head for every rank."""
    if shard.size > num_kv_heads:
        raise EngineError(
            f"tensor_parallel: {shard.size} processes, and the model has {num_kv_heads} KV heads; "
            "each process needs one"
        )


_IN_CODES = (
    "tensor_parallel: weights that stay as they were quantized are not cut; with quantize 'none' "
    "they are widened, with 'int8' or 'int4' rounded anew"
)


def _plain(product: Product) -> nn.Linear:
    if isinstance(product, CodedLinear):
        raise EngineError(_IN_CODES)
    return product


def _plain_matrix(matrix: Matrix) -> Tensor:
    if isinstance(matrix, GroupedWeight):
        raise EngineError(_IN_CODES)
    return matrix


def _times(part: slice, width: int) -> slice:
    return slice(part.start * width, part.stop * width)


def _output_places(
    num_products: int, widths: Sequence[int], parts: Sequence[slice]
) -> list[Tensor]:
    """Of outputs of these widths the `parts`, be they those of one product or of one each."""
    places = [torch.arange(width)[part] for width, part in zip(widths, parts, strict=True)]
    if num_products < len(places):
        starts = accumulate(widths, initial=0)
        places = [torch.cat([start + part for start, part in zip(starts, places, strict=False)])]
    return places


def _keep_outputs(products: Sequence[Product], places: Sequence[Tensor]) -> None:
    for product, rows in zip(map(_plain, products), places, strict=True):
        _set(product, product.weight[rows], None if product.bias is None else product.bias[rows])


def _keep_inputs(module: nn.Linear, columns: slice, shard: Shard) -> None:
    """What is summed over all ranks has the bias of the first one."""
    _set(module, module.weight[:, columns], None if shard.rank else module.bias)


def keep_equal_outputs(product: nn.Linear, shard: Shard) -> None:
    """As many on every rank, since they are gathered: behind the last ones lie zeros."""
    width = -(-len(product.weight) // shard.size)
    missing = width * shard.size - len(product.weight)
    rows = slice(shard.rank * width, (shard.rank + 1) * width)
    bias = None if product.bias is None else pad(product.bias, (0, missing))[rows]
    _set(product, pad(product.weight, (0, 0, 0, missing))[rows], bias)


def _set(module: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """Copied, or the whole would stay in memory behind the part."""
    module.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    own = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
    module.register_parameter("bias", own)
