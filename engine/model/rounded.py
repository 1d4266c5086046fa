"""A model's own layers with the roundings of packed products: what those are compared with.

Products in 8 or 4 bits are far from the model's own, so far that a wrong one would not stand out.
So the model's own layers compute the sample with each weight rounded as it is packed, in float32.
Beside it they compute the same sample with activations rounded too, as products round them, and to
the type that the model is served in: so far, and not much farther, right products may be off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.model.checkpoints.coded_experts import coded_parameters
from engine.model.checkpoints.coded_linear import CodedLinear
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.self_check import rounding_error
from engine.model.widened import Change, in_float32
from kernels.types import Quantization
from kernels.weight_format import (
    ROUNDED_TOGETHER,
    as_int4,
    as_int8,
    groups_as_int8,
    rows_as_int8,
)

_Matrix = Callable[[Tensor], Tensor]
"""Rounds a matrix along its rows, and gives float32."""
_EXPERTS = ("gate_up_proj", "down_proj")
"""Parameters [num_experts, outputs, inputs] of one module, or [num_experts, inputs, outputs]."""

Cuts = Mapping[nn.Module, Sequence[int]]
"""Where products are cut by their inputs: the widths of the parts, each rounded by itself."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What a packed product rounds: its weights, unless they are in codes, and its inputs."""

    weights: _Matrix | None
    inputs: _Matrix
    back: _Matrix | None = None
    """Of experts, the weights of their second product, if that is cut by its inputs."""

    def in_parts(self, widths: Sequence[int], *, is_second: bool) -> Rounding:
        """Of a product that is cut by its inputs; `is_second` of experts."""
        weights = None if self.weights is None else _in_parts(self.weights, widths)
        if is_second:
            return replace(self, back=weights)
        return Rounding(weights, _in_parts(self.inputs, widths))


ROUNDINGS: dict[Quantization, Rounding] = {
    "int8": Rounding(as_int8, rows_as_int8),
    "int4": Rounding(as_int4, groups_as_int8),
}
_IN_CODES = Rounding(None, groups_as_int8)
_PLAIN = Rounding(None, lambda rows: rows)
"""Beside products in codes: of their activations only the type is another."""


def roundings(
    model: PreTrainedModel,
    quantization: Quantization,
    cuts: Cuts | None = None,
    exact: Collection[nn.Module] = (),
) -> dict[nn.Module, Rounding]:
    """Of each product of a model, whatever its family names it, but those that stay `exact`.

    The embedding is not rounded, and the head never to 4 bits: see `engine.model.layers.packing`.
    """
    head = model.get_output_embeddings()
    found: dict[nn.Module, Rounding] = {}
    for module in model.modules():
        if module in exact:
            continue
        if isinstance(module, CodedLinear) or coded_parameters(module):
            found[module] = _IN_CODES
        elif type(module) is nn.Linear or _experts(module):
            kind: Quantization = "int8" if module is head else quantization
            found[module] = _PLAIN if quantization == "none" else ROUNDINGS[kind]
    cut = {
        module: found[module].in_parts(widths, is_second=bool(_experts(module)))
        for module, widths in (cuts or {}).items()
    }
    return found | cut


@torch.inference_mode()
def rounded_logits(
    decoder: EagerDecoder, ids: list[int], dtype: torch.dtype, found: Mapping[nn.Module, Rounding]
) -> tuple[Tensor, float]:
    """What the model computes with weights rounded: float32 [num_tokens, vocab_size].

    Also what the roundings of activations, and those to `dtype`, add to that: their relative error.
    """
    changes = {**dict(_changes(found)), **decoder.exact}
    with in_float32(decoder.model, changes), _second_rounded(decoder, dtype, found):
        weights_alone, all_rounded = decoder.own_copies(ids, 2)
    return weights_alone, rounding_error(all_rounded, weights_alone, decoder.has_experts)


def round_weights(weight: Tensor, rounded: _Matrix, is_transposed: bool = False) -> None:
    """Round float32 matrices [..., outputs, inputs] along their inputs, in place."""
    for matrix in weight.view(-1, *weight.shape[-2:]):
        rows = matrix.mT if is_transposed else matrix
        for part in torch.split(rows, max(1, ROUNDED_TOGETHER // rows.shape[1])):
            part.copy_(rounded(part))


def _changes(
    found: Mapping[nn.Module, Rounding],
) -> Iterator[tuple[tuple[nn.Module, str], Change]]:
    for module, rounding in found.items():
        if rounding.weights is not None:
            for name in _experts(module) or ("weight",):
                back = rounding.back if name == _EXPERTS[1] else None
                yield (module, name), _change(module, back or rounding.weights)


def _change(module: nn.Module, rounded: _Matrix) -> Change:
    is_transposed = bool(getattr(module, "is_transposed", False))
    return lambda weight: round_weights(weight, rounded, is_transposed)


def _experts(module: nn.Module) -> tuple[str, ...]:
    """Names of a module's parameters that are products of many experts."""
    own = module._parameters
    return tuple(
        name for name in _EXPERTS if (found := own.get(name)) is not None and found.dim() == 3
    )


@contextmanager
def _second_rounded(
    decoder: EagerDecoder, dtype: torch.dtype, found: Mapping[nn.Module, Rounding]
) -> Iterator[None]:
    """Round activations of the second of two sequences, and leave those of the first."""

    def to_dtype(x: Tensor) -> Tensor:
        return x.to(dtype).float()

    hooks = [
        module.register_forward_pre_hook(_of_inputs(to_dtype, rounding.inputs))
        for module, rounding in found.items()
    ] + [
        module.register_forward_hook(_of_outputs(to_dtype))
        for module in (*found, *_layers(decoder.model))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            yield from module


def _of_inputs(*each: _Matrix) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    return lambda _, inputs: (_of_second(inputs[0], *each), *inputs[1:])


def _of_outputs(*each: _Matrix) -> Callable[[nn.Module, object, Any], Any]:
    def rounded(_: nn.Module, __: object, output: Any) -> Any:
        if isinstance(output, tuple):  # some layers tell more than what goes on
            return _of_second(output[0], *each), *output[1:]
        return _of_second(output, *each)

    return rounded


def _of_second(x: Tensor, *each: _Matrix) -> Tensor:
    """`x`, in two dimensions or in three, has all tokens of one sequence before the other's."""
    first, second = x.reshape(2, -1, x.shape[-1])
    for rounded in each:
        second = rounded(second)
    return torch.stack([first, second]).view(x.shape)


def _in_parts(rounded: _Matrix, widths: Sequence[int]) -> _Matrix:
    return lambda rows: torch.cat([rounded(part) for part in torch.split(rows, list(widths), 1)], 1)
