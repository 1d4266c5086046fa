"""A model that computes in float32, part by part: all of it at once might not fit."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

Change = Callable[[Tensor], None]
"""Changes a widened parameter, in place."""
Changes = Mapping[tuple[nn.Module, str], Change]
"""What is done to a module's parameters, by their names."""

_Spare = defaultdict[torch.Size, list[Tensor]]
"""Memory of parts that have computed, for those to come: fresh memory is slow to write."""


@contextmanager
def in_float32(model: PreTrainedModel, changes: Changes | None = None) -> Iterator[None]:
    """Widen each part of the model while it computes, and change what is to be changed of it."""
    hooks: list[RemovableHandle] = []
    spare: _Spare = defaultdict(list)
    head = model.get_output_embeddings()
    for part in _parts(model):
        widened = _Widened(part, spare, changes or {})
        seen = model if part is head and _asks_for_weights(model) else part
        hooks.append(seen.register_forward_pre_hook(widened.begin))
        hooks.append(seen.register_forward_hook(widened.end, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The layers, and what is beside them."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif any(isinstance(below, nn.ModuleList) for below in child.modules()):
            yield from _parts(child)
        else:
            yield child


def _asks_for_weights(model: PreTrainedModel) -> bool:
    """Whether what goes to the head is first made of its weights' type, as Mamba's models do."""
    return "weight" in inspect.unwrap(type(model).forward).__code__.co_names


class _Widened:
    """A part that computes in float32, and what it has instead otherwise."""

    def __init__(self, part: nn.Module, spare: _Spare, changes: Changes) -> None:
        self._part = part
        self._spare = spare
        self._changes = changes
        self._originals: list[tuple[dict[str, Any], str, Tensor, Change | None]] = []

    def begin(self, *_: object) -> None:
        for module in self._part.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    change = self._changes.get((module, name))
                    if tensor is not None and (change or _is_narrow(tensor)):
                        self._originals.append((tensors, name, tensor, change))
        for tensors, name, tensor, change in self._originals:
            spare = self._spare[tensor.shape]
            wide = spare.pop() if spare else torch.empty_like(tensor, dtype=torch.float32)
            wide.copy_(tensor)
            if change is not None:
                change(wide)
            tensors[name] = nn.Parameter(wide, requires_grad=False)

    def end(self, *_: object) -> None:
        for tensors, name, tensor, _change in self._originals:
            self._spare[tensor.shape].append(tensors[name].data)
            tensors[name] = tensor
        self._originals.clear()


def _is_narrow(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float16)
