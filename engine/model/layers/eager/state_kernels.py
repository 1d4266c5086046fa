"""Modules that keep a state, as `transformers` has them, with kernels for what they do to it.

Such a module projects, convolves, goes through its state, gates, and projects back. What touches
the state are a few functions of its file, the same ones in all families: here the module's
`forward` finds others under their names, which take all runs of a step at once. So the packed
tokens go through it as if they were one sequence, which nothing else in it looks at.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu, softplus
from transformers.activations import ACT2FN

from engine.model.checkpoints.plain import COMPUTED
from kernels import recurrent
from kernels.types import StatePlace, StateRuns

INPUTS, STATE = "inputs 0", "state 0"
"""What a layer keeps, by its names."""


@dataclass(frozen=True, slots=True)
class LayerStates:
    """Those of a layer, and the runs of a step."""

    runs: StateRuns
    memory: Tensor
    places: Mapping[str, StatePlace]


@dataclass(frozen=True, slots=True)
class KernelForward:
    """A module's `forward`, over states in pages."""

    call: Callable[..., Tensor]
    names: frozenset[str]
    """Of the states that it knows."""


class NoCache:
    """In place of a module's cache: what is before is not the module's to know."""

    def is_recording_past(self, *_: Any) -> bool:
        """No."""
        return False

    def get_conv_state(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def get_recurrent_state(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def get_linear_cache(self, *_: Any) -> None:
        """Nothing."""

    def update_conv_state(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        """The inputs as they are."""
        return inputs

    def update_recurrent_state(self, state: Tensor, *_: Any, **__: Any) -> Tensor:
        """What has been kept already."""
        return state


_layer: ContextVar[LayerStates] = ContextVar("layer")


@contextmanager
def over(states: LayerStates) -> Iterator[None]:
    """Let a `KernelForward` go through these."""
    token = _layer.set(states)
    try:
        yield
    finally:
        _layer.reset(token)


def with_kernels(module: nn.Module) -> KernelForward | None:
    """The module's `forward` over states in pages; `None` for one that is not known."""
    if is_lightning(module):
        return KernelForward(MethodType(_lightning, module), frozenset({STATE}))
    own = inspect.unwrap(type(module).forward)
    if not isinstance(own, FunctionType):
        return None
    called = set(own.__code__.co_names)
    keeps = {INPUTS} | ({STATE} if called & _OF_STATES.keys() else set())
    if "causal_conv1d_fn" not in called:
        return None
    known = own.__globals__ | {"causal_conv1d_fn": _convolve} | _OF_STATES
    forward = FunctionType(own.__code__, known, own.__name__, own.__defaults__, own.__closure__)
    forward.__kwdefaults__ = own.__kwdefaults__
    return KernelForward(MethodType(forward, module), frozenset(keeps))


def is_lightning(module: nn.Module) -> bool:
    """Whether it is MiniMax's lightning attention, whose file has no function for its state."""
    return type(module).__name__ == "MiniMaxLightningAttention"


def exact_decays(model: nn.Module) -> dict[tuple[nn.Module, str], Callable[[Tensor], None]]:
    """By modules and names, what makes of lightning attention's decays, where their type has
    rounded each of them in its own way, what its configuration says.
    """
    found: dict[tuple[nn.Module, str], Callable[[Tensor], None]] = {}
    for module in filter(is_lightning, model.modules()):
        lightning: Any = module
        if lightning.slope_rate.dtype != torch.float32:
            rates = _rates(lightning)
            for name, exact in zip(COMPUTED, (rates, *lightning.decay_factors(rates)), strict=True):
                found[module, name] = partial(_fill, exact)
    return found


def _fill(values: Tensor, target: Tensor) -> None:
    target.copy_(values)


def _rates(lightning: Any) -> Tensor:
    own: Tensor = lightning.slope_rate
    exact: Tensor = lightning.get_slope_rate(own.device)
    return own if own.dtype == torch.float32 else exact


def _lightning(module: Any, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """Of each head a state forgets at a rate of its own: a scan whose steps are all of length 1."""
    layer, size = _layer.get(), module.head_dim
    projected = module.act_fn(module.qkv_proj(hidden_states))[0]
    heads = projected.view(len(projected), -1, 3 * size).split(size, dim=2)
    q, k, v = (one.contiguous() for one in heads)
    rates = -_rates(module).flatten()
    steps = rates.new_ones(v.shape[:2])
    places = (layer.runs, layer.memory, layer.places[STATE])
    found = recurrent.selective_scan(v, steps, rates, k, q, None, *places)
    gate = module.output_gate(hidden_states).sigmoid()
    gated: Tensor = module.out_proj(gate * module.norm(found.flatten(1)[None]))
    return gated


def _convolve(
    hidden_states: Tensor,  # [1, channels, num_tokens]
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    layer = _layer.get()
    fused: Literal["silu"] | None = "silu" if activation in ("silu", "swish") else None
    x = hidden_states[0].T
    x = x if x.stride(1) == 1 else x.contiguous()
    place = layer.places[INPUTS]
    made = recurrent.convolve(x, weight, bias, fused, layer.runs, layer.memory, place)
    if activation and not fused:
        made = ACT2FN[activation](made)
    return made.T[None]


def _gated_delta(
    query: Tensor,  # each [1, num_tokens, ...]
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    assert use_qk_l2norm_in_kernel
    layer = _layer.get()
    q, k, v = query[0], key[0], value[0]
    places = (layer.runs, layer.memory, layer.places[STATE])
    found = recurrent.gated_delta(q, k, v, g[0], beta[0], *places)
    return found[None], found.new_empty(0)


def _scan(
    hidden_states: Tensor,  # [1, num_tokens, ...], as dt, B and C
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    **_: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    layer, steps = _layer.get(), dt[0].float()
    if dt_bias is not None:
        steps = steps + dt_bias.float()
    if dt_softplus:
        steps = softplus(steps)
    if dt_limit != (0.0, math.inf):
        steps = _limited(steps, dt_limit, layer.runs.drawn)
    x, b, c = hidden_states[0], B[0], C[0]
    skip = None if D is None else D.float()
    places = (layer.runs, layer.memory, layer.places[STATE])
    found = recurrent.selective_scan(x, steps, A.float(), b, c, skip, *places)
    return (found[None], found.new_empty(0)) if return_final_states else found[None]


def _scan_channels(
    hidden_states: Tensor,  # [1, channels, num_tokens], as dt and z
    dt: Tensor,
    A: Tensor,  # [channels, numbers of a state]
    B: Tensor,  # [1, numbers, num_tokens], as C
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Mamba-1: each channel is a head of one number. `transformers` begins at nothing here, though
    a prompt's second part be computed.
    """
    layer, steps = _layer.get(), dt[0].T.float()
    if delta_bias is not None:
        steps = steps + delta_bias.float()
    if delta_softplus:
        steps = softplus(steps)
    x, (b, c) = hidden_states[0].T[..., None], (one[0].T[:, None] for one in (B, C))
    skip = None if D is None else D.float()
    places = (layer.runs, layer.memory, layer.places[STATE])
    found = recurrent.selective_scan(x, steps, A.float(), b, c, skip, *places)[..., 0].T[None]
    if z is not None:
        found = found * silu(z)
    return (found, found.new_empty(0)) if return_last_state else found


def _limited(steps: Tensor, limits: tuple[float, float], drawn: Tensor | None) -> Tensor:
    """`transformers` limits steps of prompts only, however these are cut into chunks here."""
    within = steps.clamp(*limits)
    if drawn is None:
        return within
    drawn = pad(drawn, (0, len(steps) - len(drawn)))  # rows that are no token's
    return torch.where(drawn[:, None], steps, within)


_OF_STATES: Final[dict[str, Callable[..., Any]]] = {
    "torch_chunk_gated_delta_rule": _gated_delta,
    "chunk_kimi_delta_attention": _gated_delta,
    "mamba_selective_scan": _scan_channels,
    "mamba2_chunk_scan": _scan,
}
"""What takes a layer's state, by the name that its file has for it."""
