"""A linear layer whose weights stay in the checkpoint's codes.

It reads them whenever it computes, so that a model of such layers takes no memory for them until
`engine.model.layers.fused` packs them, one product after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn
from torch.nn import functional

from kernels.weight_format import GroupedWeight

ReadGroups = Callable[[], GroupedWeight]
"""Reads a matrix [out_features, in_features] from its checkpoint, each time anew."""

_gives_zeros: ContextVar[bool] = ContextVar("gives_zeros", default=False)


@contextmanager
def without_weights() -> Iterator[None]:
    """Let layers in codes give zeros and read nothing, for a pass that only shapes are seen of."""
    token = _gives_zeros.set(True)
    try:
        yield
    finally:
        _gives_zeros.reset(token)


def gives_zeros() -> bool:
    """Whether layers in codes are to read nothing: see `without_weights`."""
    return _gives_zeros.get()


class CodedLinear(nn.Module):
    """In place of `nn.Linear`; computes in float32, slowly."""

    def __init__(
        self, in_features: int, out_features: int, read: ReadGroups, bias: Tensor | None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.read = read
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features], in the type of `x`."""
        if gives_zeros():
            return x.new_zeros((*x.shape[:-1], self.out_features))
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(x.float(), self.read().dequantize(), bias).to(x.dtype)


Product = nn.Linear | CodedLinear
"""What a model's products may be before they are packed."""
