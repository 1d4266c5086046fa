"""What a known family's modules are expected to be: whatever is not so makes it unfamiliar."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import chain
from typing import Any, TypeVar

from torch import nn
from transformers.activations import ACT2FN

from engine.model.checkpoints.coded_linear import CodedLinear, Product
from kernels.types import Activation

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
}
_Value = TypeVar("_Value", bound=Hashable)


class Unfamiliar(Exception):
    """The model is not of a known family, or differs from it; the message says how."""


class Classes:
    """Of a family's modules, which have its name before their own."""

    def __init__(self, model: Any, family_name: str) -> None:
        self._name, self._module = family_name, type(model).__module__

    def has(self, module: nn.Module, role: str) -> bool:
        """Whether it is the family's, by that name of its own."""
        kind = type(module)
        return kind.__name__ == self._name + role and kind.__module__ == self._module

    def require(self, module: nn.Module, role: str) -> None:
        """Raise `Unfamiliar` unless it is."""
        if not self.has(module, role):
            raise Unfamiliar(f"{type(module).__name__} in place of {self._name}{role}")


def require_children(module: nn.Module, names: set[str]) -> None:
    """Nothing but these children, and dropouts, which do nothing."""
    children = module.named_children()
    _require_same(
        module, {name for name, child in children if type(child) is not nn.Dropout}, names
    )


def require_tensors(module: nn.Module, names: set[str], beside: set[str]) -> None:
    """No parameters and buffers but these, by their paths; those of children `beside` are left
    out.
    """
    tensors = chain(module.named_parameters(), module.named_buffers())
    found = {name for name, _ in tensors if name.partition(".")[0] not in beside}
    _require_same(module, found, names)


def _require_same(module: nn.Module, found: set[str], names: set[str]) -> None:
    if found != names:
        odd = ", ".join(sorted(found ^ names))
        raise Unfamiliar(f"{type(module).__name__} with or without {odd}")


def linear(module: Any) -> Product:
    """A product, of a class that is known."""
    if type(module) not in (nn.Linear, CodedLinear):
        raise Unfamiliar(f"a product of class {type(module).__name__}")
    product: Product = module
    return product


def activation_of(module: nn.Module) -> Activation:
    """What a module between two products computes."""
    for name, activation in _ACTIVATIONS.items():
        if type(module) is type(ACT2FN[name]):
            return activation
    raise Unfamiliar(f"the activation is {type(module).__name__}")


def the_only(values: Iterable[_Value]) -> _Value:
    """What all of them are."""
    different = set(values)
    if len(different) != 1:
        raise Unfamiliar(f"layers with different options: {', '.join(map(str, different))}")
    return different.pop()
