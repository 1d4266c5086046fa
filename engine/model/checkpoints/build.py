"""Who reads a folder's quantized weights, and a `transformers` model over them.

The loader of `transformers` would widen every weight.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from engine.api import UnsupportedModel
from engine.model.checkpoints.awq import AwqCheckpoint
from engine.model.checkpoints.checkpoint import FolderCheckpoint, Options, unsupported
from engine.model.checkpoints.coded_linear import CodedLinear
from engine.model.checkpoints.compressed_tensors import CompressedCheckpoint
from engine.model.checkpoints.gguf import GgufCheckpoint
from engine.model.checkpoints.gptq import GptqCheckpoint
from engine.model.weights import GGUF_INDEX

_GENERATION = "generation_config.json"
Checkpoint = FolderCheckpoint | GgufCheckpoint
_READERS: dict[str, Callable[[Path, Options], Checkpoint]] = {
    "gptq": GptqCheckpoint,
    "awq": AwqCheckpoint,
    "compressed-tensors": CompressedCheckpoint,
}


def build_model(
    folder: Path,
    config: PretrainedConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    keeps_codes: bool,
) -> PreTrainedModel:
    """The model of `folder`, with products in the checkpoint's codes, or all of it in `dtype`.

    Raises `UnsupportedModel` for a checkpoint that lacks a parameter.
    """
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    builder = _Builder(model, checkpoint, dtype, keeps_codes)
    for name, module in list(model.named_modules()):
        builder.fill(name, module)
    if (folder / _GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


class _Builder:
    """Gives a model without memory its weights, module by module."""

    def __init__(
        self, model: PreTrainedModel, checkpoint: Checkpoint, dtype: torch.dtype, keeps_codes: bool
    ) -> None:
        self._model = model
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._keeps_codes = keeps_codes
        modules = {module: name for name, module in model.named_modules()}
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        is_tied = model.config.get_text_config().tie_word_embeddings and head is not None
        self._tied = {modules[head]: modules[embedding]} if is_tied else {}

    def fill(self, name: str, module: nn.Module) -> None:
        """Give one module its own parameters, or put another one in its place."""
        source = self._tied.get(name, name)
        read = self._checkpoint.groups(source) if type(module) is nn.Linear else None
        if isinstance(module, nn.Linear) and read is not None and self._keeps_codes:
            bias = None if module.bias is None else self._tensor(f"{name}.bias", module.bias)
            coded = CodedLinear(module.in_features, module.out_features, read, bias)
            self._model.set_submodule(name, coded)
            return
        if name in self._tied:
            module.register_parameter("weight", self._model.get_input_embeddings().weight)
            return
        for key, empty in list(module.named_parameters(recurse=False)):
            if key == "weight" and read is not None:
                tensor = self._shaped(f"{name}.{key}", read().dequantize(), empty)
            else:
                tensor = self._tensor(f"{source}.{key}", empty)
            module.register_parameter(key, nn.Parameter(tensor, requires_grad=False))

    def _tensor(self, name: str, like: Tensor) -> Tensor:
        found = self._checkpoint.tensor(name)
        if found is None:
            raise UnsupportedModel(f"the checkpoint ({self._checkpoint.method}) has no {name}")
        return self._shaped(name, found, like)

    def _shaped(self, name: str, tensor: Tensor, like: Tensor) -> Tensor:
        if tensor.shape != like.shape:
            shapes = f"{list(tensor.shape)}, not {list(like.shape)}"
            raise UnsupportedModel(
                f"the checkpoint ({self._checkpoint.method}) has {name} of shape {shapes}"
            )
        return tensor.to(self._dtype)


def find_checkpoint(folder: Path, config: PretrainedConfig) -> Checkpoint | None:
    """The reader of a folder's quantized weights; `None` if they are plain.

    It takes from `config` what `transformers` would load them by. Raises `UnsupportedModel` for
    weights in a form that is not read here, which layers of torch would multiply slowly.
    """
    if (folder / GGUF_INDEX).is_file():
        return GgufCheckpoint(folder)
    for part in (config, config.get_text_config()):
        found: Any = getattr(part, "quantization_config", None)
        if found is not None:
            options: dict[str, Any] = found if isinstance(found, dict) else found.to_dict()
            del part.quantization_config
            method = getattr(options.get("quant_method"), "value", options.get("quant_method"))
            if method not in _READERS:
                raise unsupported(
                    str(method), f"only {', '.join(_READERS)} and GGUF files are read"
                )
            return _READERS[method](folder, options)
    return None
