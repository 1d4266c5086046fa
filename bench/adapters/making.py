"""Adapters of random weights for any model, as PEFT writes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForCausalLM

from engine.api import AdapterUse, EngineError
from engine.model.weights import resolve_model

_PIECE_BYTES = 1 << 20
_SIZE = 0.01
"""Of weights, about: answers stay what a model says."""


@dataclass(frozen=True, eq=False)
class Made:
    """One of so many ranks on all linear layers, or on those behind an invocation."""

    number: int
    linears: Mapping[str, tuple[int, int]]
    rank: int
    invocation: tuple[int, ...] = ()

    @property
    def name(self) -> bytes:
        """What requests call it."""
        return self.number.to_bytes(8, "little") * 4

    def use(self, start: int = 0) -> AdapterUse:
        """From a token of the prompt on."""
        return AdapterUse(self.name, start)

    @property
    def config(self) -> bytes:
        """`adapter_config.json`."""
        fields = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": 2 * self.rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted({name.rpartition(".")[2] for name in self.linears}),
            "alora_invocation_tokens": list(self.invocation) or None,
        }
        return json.dumps(fields).encode()

    @cached_property
    def weights(self) -> bytes:
        """`adapter_model.safetensors`, in bfloat16."""
        random = torch.Generator().manual_seed(self.number)
        tensors: dict[str, torch.Tensor] = {}
        for module, (inputs, outputs) in self.linears.items():
            for matrix, shape in (("A", (self.rank, inputs)), ("B", (outputs, self.rank))):
                weight = torch.randn(shape, generator=random) * _SIZE
                tensors[f"base_model.model.{module}.lora_{matrix}.weight"] = weight.bfloat16()
        return save(tensors)


def linears_of(model: str) -> dict[str, tuple[int, int]]:
    """The linear layers of a model but its head, by their names: numbers of inputs and outputs."""
    config = AutoConfig.from_pretrained(resolve_model(model))
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    head = made.get_output_embeddings()
    return {
        name: (module.in_features, module.out_features)
        for name, module in made.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }


class Shelf:
    """Brings adapters to an engine, as a service does."""

    def __init__(self) -> None:
        self.made: dict[bytes, Made] = {}
        self.num_brought = 0

    def add(self, made: Made) -> Made:
        """One that may be asked for."""
        return self.made.setdefault(made.name, made)

    async def bring(self, name: bytes) -> AsyncIterator[bytes]:
        """See `engine.client.Source`."""
        made = self.made.get(name)
        if made is None:
            raise EngineError("there is no such adapter")
        self.num_brought += 1
        yield made.config
        for start in range(0, len(made.weights), _PIECE_BYTES):
            yield made.weights[start : start + _PIECE_BYTES]
