"""Who reads a folder's quantized weights, and a `transformers` model over them.

The loader of `transformers` would widen every weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from engine.api import UnsupportedModel
from engine.model.checkpoints.awq import AwqCheckpoint
from engine.model.checkpoints.checkpoint import FolderCheckpoint, Options, unsupported
from engine.model.checkpoints.coded_experts import CodedParameter, keep_in_codes
from engine.model.checkpoints.coded_linear import CodedLinear, ReadGroups
from engine.model.checkpoints.compressed_tensors import CompressedCheckpoint
from engine.model.checkpoints.expert_reader import ExpertReader
from engine.model.checkpoints.fp8 import Fp8Checkpoint
from engine.model.checkpoints.gguf import GgufCheckpoint
from engine.model.checkpoints.gptq import GptqCheckpoint
from engine.model.checkpoints.mxfp4 import Mxfp4Checkpoint
from engine.model.weights import GGUF_INDEX
from kernels.weight_format import GroupedWeight

_GENERATION = "generation_config.json"
Checkpoint = FolderCheckpoint | GgufCheckpoint
_READERS: dict[str, Callable[[Path, Options], Checkpoint]] = {
    "gptq": GptqCheckpoint,
    "awq": AwqCheckpoint,
    "compressed-tensors": CompressedCheckpoint,
    "fp8": Fp8Checkpoint,
    "mxfp4": Mxfp4Checkpoint,
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
    # The other ways to compute experts take the weights of all at once, or those of each token.
    model.config.get_text_config()._experts_implementation = "eager"
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
            checked = partial(self._matrix, f"{source}.weight", read, module.weight.shape)
            coded = CodedLinear(module.in_features, module.out_features, checked, bias)
            self._model.set_submodule(name, coded)
        elif name in self._tied:
            module.register_parameter("weight", self._model.get_input_embeddings().weight)
        elif hasattr(module, "is_transposed"):
            self._fill_experts(source, module)
        else:
            self._fill_plain(source, module, read)

    def _fill_plain(self, source: str, module: nn.Module, read: ReadGroups | None) -> None:
        for key, empty in list(module.named_parameters(recurse=False)):
            if key == "weight" and read is not None:
                tensor = self._shaped(f"{source}.{key}", read().dequantize(), empty)
            else:
                tensor = self._tensor(f"{source}.{key}", empty)
            module.register_parameter(key, nn.Parameter(tensor, requires_grad=False))
        for key, buffer in list(module.named_buffers(recurse=False)):
            if key not in module._non_persistent_buffers_set:
                setattr(module, key, self._tensor(f"{source}.{key}", buffer, buffer.dtype))

    def _fill_experts(self, source: str, module: nn.Module) -> None:
        coded = {}
        for key, empty in list(module.named_parameters(recurse=False)):
            found = self._experts(f"{source}.{key}", module, empty)
            if isinstance(found, CodedParameter):
                coded[key] = found
            else:
                module.register_parameter(key, nn.Parameter(found, requires_grad=False))
        if coded:
            keep_in_codes(module, coded)

    def _experts(self, name: str, module: Any, like: Tensor) -> Tensor | CodedParameter:
        """A parameter of experts: [experts, out, in], transposed, or [experts, out]."""
        reader = ExpertReader(self._checkpoint, name, not module.is_concatenated)
        if like.dim() == 2:
            biases = reader.biases()
            return self._tensor(name, like) if biases is None else self._shaped(name, biases, like)
        if not reader.is_apart:
            return self._tensor(name, like)
        if reader.has(len(like)):
            raise UnsupportedModel(
                f"the checkpoint ({self._checkpoint.method}) has more experts in {name} than the "
                f"{len(like)} of its configuration"
            )
        if self._keeps_codes and reader.is_coded(len(like)):
            shape = like.mT.shape[1:] if module.is_transposed else like.shape[1:]

            def read(expert: int) -> GroupedWeight:
                return self._matrix(name, partial(reader.groups, expert), shape)

            return CodedParameter(like.shape, module.is_transposed, read)
        whole = torch.empty(like.shape, dtype=self._dtype)
        for expert, place in enumerate(whole):
            values = reader.values(expert)
            place.copy_(self._shaped(name, values.T if module.is_transposed else values, place))
        return whole

    def _matrix(self, name: str, read: ReadGroups, shape: torch.Size) -> GroupedWeight:
        """What `read` gives, if it has this shape."""
        matrix = read()
        self._require_shape(name, (len(matrix.codes), matrix.in_features), shape)
        return matrix

    def _tensor(self, name: str, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        found = self._checkpoint.tensor(name)
        if found is None:
            raise UnsupportedModel(f"the checkpoint ({self._checkpoint.method}) has no {name}")
        return self._shaped(name, found, like, dtype)

    def _shaped(
        self, name: str, tensor: Tensor, like: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        self._require_shape(name, tensor.shape, like.shape)
        return tensor.to(dtype or self._dtype)

    def _require_shape(self, name: str, found: Sequence[int], wanted: Sequence[int]) -> None:
        if list(found) != list(wanted):
            shapes = f"{list(found)}, not {list(wanted)}"
            raise UnsupportedModel(
                f"the checkpoint ({self._checkpoint.method}) has {name} of shape {shapes}"
            )


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
