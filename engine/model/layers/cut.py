"""What a rank has of a model's weights: modules are cut where they are, and the rest is let go."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import pad

from engine.api import EngineError
from engine.model.checkpoints.coded_linear import CodedLinear, Product
from engine.model.layers.families import Description, LayerDescription
from engine.model.layers.shard import Shard


def cut(description: Description, shard: Shard) -> Description:
    """The rank's part of a model, whose modules keep that part alone.

    Raises `EngineError`, naming `tensor_parallel`, for what cannot be cut.
    """
    layers = [_layer(layer, shard) for layer in description.layers]
    _keep_vocabulary(_plain(description.head), shard)
    return replace(description, layers=layers)


def _layer(layer: LayerDescription, shard: Shard) -> LayerDescription:
    options = layer.options
    num_heads, num_kv_heads = options.num_heads, options.num_kv_heads
    require_heads(num_kv_heads, shard)
    query, key, value = map(_plain, layer.qkv)
    own, head_dim = shard.part(num_kv_heads), len(key.weight) // num_kv_heads
    # The query heads of a KV head lie side by side, and stay with it.
    heads_of_group = num_heads // num_kv_heads
    queries = _times(own, heads_of_group * head_dim)
    _keep_outputs(query, queries)
    for module in (key, value):
        _keep_outputs(module, _times(own, head_dim))
    _keep_inputs(_plain(layer.out), queries, shard)
    down = _plain(layer.down)
    inner = shard.part(down.weight.shape[1])
    for part in layer.gate_up:
        _keep_outputs(_plain(part), inner)
    _keep_inputs(down, inner, shard)
    count = shard.count(num_kv_heads)
    options = replace(options, num_heads=count * heads_of_group, num_kv_heads=count)
    return replace(layer, options=options)


def require_heads(num_kv_heads: int, shard: Shard) -> None:
    """Raise `EngineError` unless there is a KV head for every rank."""
    if shard.size > num_kv_heads:
        raise EngineError(
            f"tensor_parallel: {shard.size} processes, and the model has {num_kv_heads} KV heads; "
            "each process needs one"
        )


def _plain(product: Product) -> nn.Linear:
    if isinstance(product, CodedLinear):
        raise EngineError(
            "tensor_parallel: weights that stay as they were quantized are not cut; with quantize "
            "'none' they are widened, with 'int8' or 'int4' rounded anew"
        )
    return product


def _times(part: slice, width: int) -> slice:
    return slice(part.start * width, part.stop * width)


def _keep_outputs(module: nn.Linear, rows: slice) -> None:
    _set(module, module.weight[rows], None if module.bias is None else module.bias[rows])


def _keep_inputs(module: nn.Linear, columns: slice, shard: Shard) -> None:
    """What is summed over all ranks has the bias of the first one."""
    _set(module, module.weight[:, columns], None if shard.rank else module.bias)


def _keep_vocabulary(head: nn.Linear, shard: Shard) -> None:
    """As many tokens on every rank, since they are gathered: behind the last ones lie zeros."""
    width = -(-len(head.weight) // shard.size)
    missing = width * shard.size - len(head.weight)
    rows = slice(shard.rank * width, (shard.rank + 1) * width)
    bias = None if head.bias is None else pad(head.bias, (0, missing))[rows]
    _set(head, pad(head.weight, (0, 0, 0, missing))[rows], bias)


def _set(module: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """Copied, or the whole would stay in memory behind the part."""
    module.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    own = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
    module.register_parameter("bias", own)
