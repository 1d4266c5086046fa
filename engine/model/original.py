"""A model as `transformers` has it, with the weights of whatever checkpoint it comes from.

Products whose codes nothing here multiplies (on a GPU, in a model that is not fused, floats of 8
bits) are widened, and the log says what that takes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from engine.api import UnsupportedModel
from engine.config import EngineConfig
from engine.model.checkpoints.build import Checkpoint, build_model, find_checkpoint
from engine.model.checkpoints.coded_experts import coded_parameters
from engine.model.checkpoints.coded_linear import CodedLinear
from engine.model.checkpoints.plain import read_plain
from engine.model.errors import building, reading
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.expected import Unfamiliar
from engine.model.layers.families import describe
from engine.model.self_check import SAMPLE_TOKENS
from engine.model.sight.families import SIGHTED, split
from engine.model.sight.tower import Tower
from engine.system.control_groups import available_memory
from kernels.native import library

_log = logging.getLogger(__name__)

_UNSERVED = {"indexed_attention": "layers of sparse attention over an index"}
"""Kinds of layers, as configurations name them, that are refused before any weight is read."""


@dataclass(frozen=True, slots=True)
class Original:
    """A model as `transformers` has it."""

    eager: EagerDecoder
    text: PretrainedConfig
    device: torch.device
    dtype: torch.dtype
    quantized_by: str | None
    """As in `Weights`."""
    tower: Tower | None = None
    """As in `Weights`."""


def load_original(config: EngineConfig, device: torch.device) -> Original:
    """The model that `config` names, on its device.

    Raises `UnsupportedModel` for architectures that cannot be served from blocks.
    """
    whole = _configuration(config.model_path)
    unserved = _UNSERVED.keys() & set(getattr(whole.get_text_config(), "layer_types", None) or ())
    if unserved:
        raise UnsupportedModel(f"{_UNSERVED[min(unserved)]} cannot be served from blocks")
    keeps_codes = config.quantize == "auto" and device.type == "cpu"
    original = _loaded(config, device, keeps_codes)
    if original.quantized_by is None:
        return original
    try:
        describe(original.eager.model, original.eager.calls, max_positions(config))
    except Unfamiliar as reason:
        _log.warning("nothing multiplies codes in layers that are not fused: %s", reason)
    else:
        return original
    del original  # or what is not in codes would be there twice
    return _loaded(config, device, keeps_codes=False)


def max_positions(config: EngineConfig) -> int | None:
    """Where rotary tables end, if that is before the model's contexts do."""
    return max(config.max_context_tokens, SAMPLE_TOKENS) if config.max_context_tokens else None


def _loaded(config: EngineConfig, device: torch.device, keeps_codes: bool) -> Original:
    dtype = choose_dtype(config, device)
    # Anew each time: whoever reads codes takes from it what says so.
    whole = _configuration(config.model_path)
    folder = Path(config.model_path)
    with reading(config.model_path):
        checkpoint = find_checkpoint(folder, whole)
        sees = checkpoint is None and whole.model_type in SIGHTED
        if checkpoint is None:
            model, quantized_by = _read_plain(folder, device, dtype, sees=sees), None
        else:
            model, quantized_by = _read(folder, whole, checkpoint, device, dtype, keeps_codes)
    text, tower = whole.get_text_config(), None
    if sees:
        model, tower = split(model)
        text = model.config
    eager = EagerDecoder(model, config.max_context_tokens)
    return Original(eager, text, device, dtype, quantized_by, tower)


def _configuration(folder: str) -> PretrainedConfig:
    with reading(folder), building(folder):
        found: PretrainedConfig = AutoConfig.from_pretrained(folder)
    return found


def _read_plain(
    folder: Path, device: torch.device, dtype: torch.dtype, *, sees: bool
) -> PreTrainedModel:
    """A model whose weights are no codes; of one that sees, with its tower."""
    plain = read_plain(folder, dtype, sees=sees)
    if not all(map(_has_even_rows, plain.modules())):
        plain.set_experts_implementation("eager")
    return plain.to(device)


def _read(
    folder: Path,
    whole: PretrainedConfig,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    keeps_codes: bool,
) -> tuple[PreTrainedModel, str | None]:
    """The model, and by what method its products are quantized, if they stay in codes. Of one that
    sees that is the text's part.
    """
    model = build_model(folder, whole, checkpoint, dtype, keeps_codes)
    num_coded = sum(map(_is_coded, model.modules()))
    if not num_coded:
        _log.info(
            "weights quantized by %s are widened to %s: %.2f GiB, from %.2f",
            *(checkpoint.method, str(dtype).removeprefix("torch.")),
            *(num_bytes / 2**30 for num_bytes in (_num_bytes(model), _stored_bytes(folder))),
        )
        return model.to(device), None
    _log.info("%d products stay as they were quantized by %s", num_coded, checkpoint.method)
    return model, checkpoint.method


def _has_even_rows(module: nn.Module) -> bool:
    """Whether torch's grouped product takes a module of experts, of which it wants rows of whole
    16 bytes.
    """
    if not hasattr(module, "is_transposed"):
        return True
    matrices = (values for values in module.parameters(recurse=False) if values.dim() == 3)
    return not any(
        width * matrix.itemsize % 16 for matrix in matrices for width in matrix.shape[1:]
    )


def _is_coded(module: nn.Module) -> bool:
    return isinstance(module, CodedLinear) or bool(coded_parameters(module))


def _num_bytes(model: PreTrainedModel) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def _stored_bytes(folder: Path) -> int:
    files = (*folder.glob("*.safetensors"), *folder.glob("*.gguf"))
    return sum(file.stat().st_size for file in files)


def choose_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU, and on a CPU with matrix tiles (AMX) or the compiled library.

    The library reads half as many bytes so, on any CPU. torch multiplies float32 faster than
    bfloat16 without AMX; there it is float32, unless the weights would take more than a quarter of
    the free memory.
    """
    if config.dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if library.available() or torch.cpu._is_amx_tile_supported():
        return torch.bfloat16
    widened = 2 * _stored_bytes(Path(config.model_path))
    small = widened <= available_memory() / 4
    return torch.float32 if small else torch.bfloat16
