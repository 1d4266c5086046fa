"""Layers that keep a state of fixed size, as `transformers` has them, over states in pages.

Such a module computes one sequence at a time, from the state that its cache has to the one behind
the tokens that it is given. Here kernels take all runs of a step
(`engine.model.layers.eager.state_kernels`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from engine.api import UnsupportedModel
from engine.model.layers.eager.state_kernels import (
    KernelForward,
    LayerStates,
    NoCache,
    is_lightning,
    over,
    with_kernels,
)
from engine.model.layers.layout import StateShape
from kernels.types import LayerCaches, StatePlace, StateRuns

_CACHES = ("cache_params", "past_key_values")
"""What modules call the cache."""
_KINDS = {"conv", "linear_attention", "mamba", "hybrid"}
"""How configurations name layers with states."""


class _Told(NoCache):
    """What a module says of one sequence's states, [1, *shape], by their names."""

    def __init__(self) -> None:
        self.states: dict[str, Tensor] = {}

    def set_linear_cache(self, _: int, state: Tensor) -> None:
        self.update_recurrent_state(state, 0)

    def update_conv_state(
        self, inputs: Tensor, _: int, state_idx: int = 0, conv_kernel_size: int | None = None
    ) -> Tensor:
        """The last inputs, [1, channels, tokens]."""
        width = conv_kernel_size or inputs.shape[-1]
        inputs = pad(inputs, (max(0, width - inputs.shape[-1]), 0))
        self.states[f"inputs {state_idx}"] = inputs[..., -width:]
        return inputs

    def update_recurrent_state(self, state: Tensor, layer_idx: int, state_idx: int = 0) -> Tensor:  # noqa: ARG002
        self.states[f"state {state_idx}"] = state.float()
        return state


@dataclass(frozen=True, slots=True)
class _Own:
    """A module's own `forward`."""

    call: Callable[..., Any]
    signature: inspect.Signature
    cache_name: str
    is_lightning: bool
    """Whether it returns its state beside its output."""

    def output(self, call: inspect.BoundArguments) -> Tensor:
        """Raises `UnsupportedModel` if there is more to it than is known."""
        output = self.call(*call.args, **call.kwargs)
        if self.is_lightning:
            output, _ = output
        if not isinstance(output, Tensor):
            raise UnsupportedModel("layers that hand on more than their output are not supported")
        return output


@dataclass(frozen=True, slots=True)
class _Watch:
    """What is seen of a pass over one token: the states of each layer."""

    states: dict[int, dict[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a running pass over packed tokens needs to know."""

    states: StateRuns | None
    """Of the device's memory."""
    query_starts: Tensor
    memory: Tensor
    places: Mapping[int, Mapping[str, StatePlace]]
    """By layer and name."""


_running: ContextVar[_Pass | _Watch | None] = ContextVar("running", default=None)


class StateLayers:
    """The layers of a model that keep a state; they are numbered as they come."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Let such modules find the states of a pass that is `running`.

        Raises `UnsupportedModel` for a model whose layers with a state are not known.
        """
        named = [(one, name) for one in model.modules() if (name := _cache_name(one))]
        kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
        kernels = [with_kernels(module) for module, _ in named]
        self._kernels = [one for one in kernels if one is not None]
        if len(self._kernels) < len(kernels) or (not named and kinds & _KINDS):
            raise UnsupportedModel(
                f"{type(model).__name__} has layers with a recurrent state, which it keeps in a "
                "way that is not known"
            )
        for number, ((module, name), known) in enumerate(zip(named, self._kernels, strict=True)):
            signature = inspect.signature(module.forward)
            own = _Own(module.forward, signature, name, is_lightning(module))
            module.forward = partial(_forward, number, own, known)
        self.shapes: tuple[StateShape, ...] = ()
        """What they keep."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Learn from a pass over one token what each layer keeps.

        Raises `UnsupportedModel` for one that keeps it elsewhere.
        """
        watch = _Watch()
        token = _running.set(watch)
        try:
            yield
        finally:
            _running.reset(token)
        kept = (set(watch.states.get(number, ())) for number in range(len(self._kernels)))
        if any(names != kernels.names for names, kernels in zip(kept, self._kernels, strict=True)):
            raise UnsupportedModel("layers that keep their state in another way are not supported")
        self.shapes = tuple(
            StateShape(number, name, tuple(state.shape[1:]), state.dtype)
            for number, states in sorted(watch.states.items())
            for name, state in states.items()
        )

    @contextmanager
    def running(
        self, runs: StateRuns | None, query_starts: Tensor, caches: LayerCaches
    ) -> Iterator[None]:
        """A pass over packed tokens, of such runs, or of sequences of their own that begin at
        `query_starts`.
        """
        if not self.shapes:
            yield
            return
        places: dict[int, dict[str, StatePlace]] = {}
        for shape, place in zip(self.shapes, caches.states, strict=True):
            places.setdefault(shape.layer, {})[shape.name] = place
        states = None if runs is None else _moved(runs, caches.memory.device)
        token = _running.set(_Pass(states, query_starts, caches.memory, places))
        try:
            yield
        finally:
            _running.reset(token)


def _cache_name(module: nn.Module) -> str | None:
    """What a module that keeps a state calls its cache. Lightning's alone do not convolve, too."""
    parameters = inspect.signature(module.forward).parameters
    convolves = any(isinstance(child, nn.Conv1d) for child in module.children())
    if not convolves and not is_lightning(module):
        return None
    return next((name for name in _CACHES if name in parameters), None)


def _forward(number: int, own: _Own, kernels: KernelForward, *args: Any, **options: Any) -> Any:
    """In place of a module's `forward`."""
    running = _running.get()
    if running is None:
        return own.call(*args, **options)
    call = own.signature.bind(*args, **options)
    if "attention_mask" in own.signature.parameters:
        call.arguments["attention_mask"] = None
    output = _computed(running, number, own, kernels, call)
    return (output, None) if own.is_lightning else output


def _computed(
    running: _Pass | _Watch,
    number: int,
    own: _Own,
    kernels: KernelForward,
    call: inspect.BoundArguments,
) -> Tensor:
    if isinstance(running, _Watch):
        call.arguments[own.cache_name] = cache = _Told()
        output = own.output(call)
        running.states[number] = cache.states
        return output
    if running.states is None:
        return _alone(running.query_starts, own, call)
    call.arguments[own.cache_name] = NoCache()
    with over(LayerStates(running.states, running.memory, running.places[number])):
        return kernels.call(*call.args, **call.kwargs)


def _alone(query_starts: Tensor, own: _Own, call: inspect.BoundArguments) -> Tensor:
    """Sequences of their own, with which nobody goes on."""
    first, starts = next(iter(call.arguments)), query_starts.tolist()
    hidden: Tensor = call.arguments[first]
    outputs = []
    for start, end in pairwise(starts):
        if end > start:
            call.arguments[first] = hidden[:, start:end]
            outputs.append(own.output(call)[0])
    return torch.cat(outputs)[None]


def _moved(runs: StateRuns, device: torch.device) -> StateRuns:
    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    drawn = None if runs.drawn is None else moved(runs.drawn)
    places = moved(runs.starts), moved(runs.sources), moved(runs.targets)
    return StateRuns(*places, drawn, runs.batch_invariant)
