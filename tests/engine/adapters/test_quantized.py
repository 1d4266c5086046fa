"""Adapters on weights in 8 and 4 bits: the logits are PEFT's on weights that are rounded alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from engine.config import EngineConfig
from engine.model.load import load_model
from engine.model.rounded import Rounding, roundings
from engine.model.self_check import relative_error
from engine.run.adapters import ModelAdapters
from kernels.types import Quantization
from tests.engine.adapters.peft_models import make_adapter
from tests.engine.adapters.test_families import BLOCK, TARGETS, TOKENS, logits
from tests.engine.model.tiny_families import tiny_config, tiny_model
from tests.kernels.test_linear import needs_library

INVOCATION = (11, 12)


def prompt() -> list[int]:
    """Of which the sixth and the seventh token invoke."""
    rng = random.Random(3)
    ids = [rng.randrange(13, 97) for _ in range(TOKENS)]
    ids[5:7] = INVOCATION
    return ids


def rounding_inputs(found: Mapping[nn.Module, Rounding]) -> list[RemovableHandle]:
    """Have products round their inputs: those of the base, and nothing of what PEFT adds."""

    def hook(rounding: Rounding) -> Callable[[nn.Module, tuple[Tensor, ...]], Tensor]:
        return lambda _, x: rounding.inputs(x[0].flatten(0, -2)).view(x[0].shape)

    return [module.register_forward_pre_hook(hook(one)) for module, one in found.items()]


@needs_library
@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "phi3", "glm4"])
def test_quantized_weights_are_changed_as_peft_changes_those_rounded_alike(
    family: str, quantize: Quantization, tmp_path: Path
) -> None:
    base = tiny_model(tiny_config(family))
    base.save_pretrained(tmp_path / "model")
    ids, found = prompt(), roundings(base, quantize)
    for module, rounding in found.items():
        assert isinstance(module, nn.Linear)
        assert rounding.weights is not None
        module.weight.data.copy_(rounding.weights(module.weight.data))
    made = make_adapter(
        base, tmp_path / "adapter", 1, INVOCATION, r=5, target_modules=TARGETS[family]
    )
    with made.changing(base) as changed, torch.inference_mode():
        expected = changed(torch.tensor([ids])).logits[0]
        with changed.disable_adapter():
            plain = changed(torch.tensor([ids])).logits[0]
        hooks = rounding_inputs(found)
        rounded = changed(torch.tensor([ids])).logits[0]
        for one in hooks:
            one.remove()
    config = EngineConfig(
        model_path=str(tmp_path / "model"),
        dtype="float32",
        max_context_tokens=64,
        block_size=BLOCK,
        quantize=quantize,
    )
    model = load_model(config, by_kinds=True)
    said = logits(model, ModelAdapters(model), made.folder, ids)
    # What rounds inputs elsewhere by a bit may round some of them to the next step.
    assert relative_error(said, rounded) < 0.5 * relative_error(rounded, expected)
    assert relative_error(rounded, expected) < 0.05 * relative_error(plain[5:], expected[5:])
