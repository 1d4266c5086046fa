"""What a layer's feed-forward network is, read from its modules: dense, or a mixture of experts."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import nn

from engine.model.checkpoints.coded_experts import coded_parameters
from engine.model.layers.description import (
    DenseDescription,
    ExpertsDescription,
    MixtureDescription,
)
from engine.model.layers.expected import (
    Classes,
    Unfamiliar,
    activation_of,
    linear,
    require_children,
    require_tensors,
    the_only,
)
from engine.model.layers.family import Family, Mixtures
from kernels.types import MOST_EXPERTS, Activation, Routing

_CLAMPED = 1.702, 7.0
"""Alpha and limit of `clamped_swiglu`."""


class NetworkReader:
    """Reads the networks of one model; every method raises `Unfamiliar` for what is not as the
    family has it.
    """

    def __init__(self, family: Family, classes: Classes) -> None:
        self._family, self._classes = family, classes

    def names(self, layer: nn.Module) -> set[str]:
        """Of the modules that are a layer's network."""
        mixtures = self._family.mixtures
        if mixtures is None:
            return {"mlp"}
        return {mixtures.name} | (_shared(mixtures, layer) if mixtures.is_shared_beside else set())

    def network(self, layer: Any) -> DenseDescription | MixtureDescription:
        """A layer's."""
        mixtures = self._family.mixtures
        module = layer.mlp if mixtures is None else getattr(layer, mixtures.name)
        if mixtures is None or not self._classes.has(module, mixtures.kind):
            return self._dense(module)
        return self._mixture(mixtures, module, layer if mixtures.is_shared_beside else module)

    def _dense(self, module: nn.Module) -> DenseDescription:
        family = self._family
        self._classes.require(module, "MLP")
        require_children(module, {*family.gate_up, family.down, family.activation})
        return DenseDescription(
            gate_up=[linear(getattr(module, name)) for name in family.gate_up],
            down=linear(getattr(module, family.down)),
            activation=activation_of(getattr(module, family.activation)),
        )

    def _mixture(self, mixtures: Mixtures, module: Any, holder: nn.Module) -> MixtureDescription:
        """With what is shared, in `holder`."""
        beside = _shared(mixtures, module)
        require_children(module, {mixtures.router, "experts"} | beside)
        in_codes = {f"experts.{name}" for name in coded_parameters(module.experts)}
        require_tensors(module, _own_tensors(mixtures) - in_codes, beside)
        router = getattr(module, mixtures.router)
        self._classes.require(router, mixtures.router_kind)
        activation = self._activation(mixtures, module.experts)
        part, gate = (
            getattr(holder, name or "", None) for name in (mixtures.shared, mixtures.shared_gate)
        )
        shared = None if part is None else self._dense(part)
        return MixtureDescription(
            router=router,
            routing=_routing(mixtures, module, router),
            experts=ExpertsDescription(module.experts, mixtures.is_transposed),
            activation=activation if shared is None else the_only([activation, shared.activation]),
            shared=shared,
            shared_gate=None if gate is None else linear(gate),
        )

    def _activation(self, mixtures: Mixtures, experts: Any) -> Activation:
        self._classes.require(experts, "Experts")
        require_children(experts, set() if mixtures.has_clamped_gates else {"act_fn"})
        if not mixtures.has_clamped_gates:
            return activation_of(experts.act_fn)
        if (experts.alpha, experts.limit) != _CLAMPED:
            raise Unfamiliar(f"gates of alpha {experts.alpha}, clamped to {experts.limit}")
        return "clamped_swiglu"


def _shared(mixtures: Mixtures, holder: nn.Module) -> set[str]:
    """Names of what is there for all tokens; a family that may have it does not always."""
    may_be = {mixtures.shared, mixtures.shared_gate}
    return {name for name, _ in holder.named_children() if name in may_be}


def _own_tensors(mixtures: Mixtures) -> set[str]:
    """Of a mixture, without what it shares."""
    names = {f"{mixtures.router}.weight", "experts.gate_up_proj", "experts.down_proj"}
    if mixtures.has_biases:
        names |= {f"{name}_bias" for name in names if name.startswith("experts.")}
        names.add(f"{mixtures.router}.bias")
    return names if mixtures.correction is None else names | {mixtures.correction}


def _routing(mixtures: Mixtures, module: Any, router: Any) -> Routing:
    correction = None
    if mixtures.correction is not None:
        correction = attrgetter(mixtures.correction)(module).detach().float().flatten().clone()
    routing = mixtures.routing(router, correction)
    if not 1 <= routing.per_token <= routing.num_experts <= MOST_EXPERTS:
        raise Unfamiliar(f"{routing.per_token} of {routing.num_experts} experts a token")
    return routing
