"""From a model folder to a paged model that computes what the model itself does.

`transformers` owns definition, weights and configuration. Whatever is made of them is compared with
the model's own logits, at start.
"""

from __future__ import annotations

import ctypes
import gc
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from engine.api import EngineError, UnsupportedModel
from engine.config import EngineConfig
from engine.model.checkpoints.build import build_model, find_checkpoint
from engine.model.checkpoints.coded_linear import CodedLinear
from engine.model.errors import reading
from engine.model.layers.eager import EagerDecoder
from engine.model.layers.families import Unfamiliar
from engine.model.layers.fused import FusedDecoder, fuse
from engine.model.layers.layout import AttentionLayout
from engine.model.layers.leader import Followers, LeadingModel
from engine.model.layers.paged_model import PagedModel, Weights
from engine.model.layers.shard import Shard, require_heads
from engine.model.self_check import (
    SAMPLE_TOKENS,
    TOLERANCE,
    checked_logits,
    in_parts,
    relative_error,
    sample,
)
from engine.system.control_groups import available_memory
from kernels.native import library

_log = logging.getLogger(__name__)

_UNSERVED = {
    "conv": "layers with the state of a convolution",
    "indexed_attention": "layers of sparse attention over an index",
    "linear_attention": "layers with a recurrent state",
}
"""Kinds of layers, as configurations name them, that are refused before any weight is read."""
_ROUNDING = 3.0
"""Times the model's own error that others may make, who sum up in another order."""
_CACHE_ROUNDING = 0.1
"""For a KV cache of a narrower type than the weights."""


def load_model(
    config: EngineConfig, followers: Followers | None = None, by_kinds: bool = False
) -> PagedModel:
    """Load the weights that `config` names onto its device, or the first rank's part of them.

    `by_kinds` says whether layers with a window remember that alone; see `AttentionLayout`.
    Raises `UnsupportedModel` for architectures that cannot be served from blocks, and `EngineError`
    for options that the device or the architecture does not have.
    """
    device = choose_device(config.device)
    if config.quantize in ("int8", "int4") and device.type != "cpu":
        raise EngineError(f"quantize: {config.quantize} weights are for CPUs; this is a GPU")
    if config.kv_dtype == "fp8" and device.type != "cuda":
        raise EngineError("kv_dtype: a cache of fp8 needs a GPU; on this CPU there is int8")
    model, error, tolerance = _load(config, device, followers, by_kinds)
    needs_fusing = _needs_fusing(config, model.weights.quantized_by) is not None
    if not error < tolerance and model.weights.is_fused and not needs_fusing:
        _log.warning("fused layers differ from the model's own (by %.2g), which serve now", error)
        del model
        model, error, tolerance = _load(config, device, None, by_kinds, may_fuse=False)
    if not error < tolerance:
        raise UnsupportedModel(
            f"{config.model_path}: paged logits differ from the model's own "
            f"(relative error {error:.2g})"
        )
    model.logit_error = error
    return model


def load_shard(config: EngineConfig, shard: Shard, by_kinds: bool) -> PagedModel:
    """The part of a rank behind the first, which checks the whole. For `by_kinds` and errors see
    `load_model`.
    """
    original = _load_original(config, choose_device(config.device))
    weights = _weights(original, config, _cut(_layout(original.eager, by_kinds), shard), shard)
    del original
    _return_memory(weights.device)
    return PagedModel(weights, config.block_size, config.kv_dtype, config.batch_invariant)


@dataclass(frozen=True, slots=True)
class _Original:
    """A model as `transformers` has it."""

    eager: EagerDecoder
    text: PretrainedConfig
    device: torch.device
    dtype: torch.dtype
    quantized_by: str | None
    """As in `Weights`."""


def _load(
    config: EngineConfig,
    device: torch.device,
    followers: Followers | None,
    by_kinds: bool,
    may_fuse: bool = True,
) -> tuple[PagedModel, float, float]:
    """The model, how far its logits are from those of the model as it was loaded, and may be.

    Raises `UnsupportedModel` if its attention cannot be paged.
    """
    original = _load_original(config, device)
    whole = _layout(original.eager, by_kinds)
    ids = sample(original.text.vocab_size)
    expected = checked_logits(original.eager, ids, config.block_size)
    own_error = 0.0
    if original.dtype != torch.float32 and original.quantized_by is None:
        own_error = relative_error(original.eager.own_logits(ids), expected)
    shard = None if followers is None else followers.shard
    weights = _weights(original, config, _cut(whole, shard), shard, may_fuse)
    del original
    _return_memory(device)
    options = config.block_size, config.kv_dtype, config.batch_invariant
    if followers is None:
        paged = PagedModel(weights, *options)
    else:
        followers.wait()
        size = followers.shard.size
        parts = [_cut(whole, Shard(rank, size)) for rank in range(size)]
        paged = LeadingModel(weights, *options, followers, parts)
    error = relative_error(_paged_logits(paged, ids), expected)
    return paged, error, _tolerance(paged, config, own_error)


def _load_original(config: EngineConfig, device: torch.device) -> _Original:
    with reading(config.model_path):
        whole = AutoConfig.from_pretrained(config.model_path)
    text = whole.get_text_config()
    unserved = _UNSERVED.keys() & set(getattr(text, "layer_types", None) or ())
    if unserved:
        raise UnsupportedModel(f"{_UNSERVED[min(unserved)]} cannot be served from blocks")
    dtype = choose_dtype(config, device)
    with reading(config.model_path):
        model, quantized_by = _read(config, whole, device, dtype)
    eager = EagerDecoder(model, config.max_context_tokens)
    return _Original(eager, text, device, dtype, quantized_by)


def _weights(
    original: _Original,
    config: EngineConfig,
    layout: AttentionLayout,
    shard: Shard | None,
    may_fuse: bool = True,
) -> Weights:
    """What computes in place of the original, whose own weights are given up if it is fused."""
    eager, quantized_by = original.eager, original.quantized_by
    return Weights(
        decoder=(_fused(eager, config, quantized_by, shard) if may_fuse else None) or eager,
        layout=layout,
        config=original.text,
        eos_token_ids=_eos_token_ids(eager.model),
        device=original.device,
        dtype=original.dtype,
        rotary_switch=eager.rotary_switch,
        quantized_by=quantized_by,
    )


def _read(
    config: EngineConfig, whole: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> tuple[PreTrainedModel, str | None]:
    """The model, and by what method its products are quantized, if they stay in codes."""
    folder = Path(config.model_path)
    checkpoint = find_checkpoint(folder, whole)
    if checkpoint is None:
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        return plain.to(device), None
    keeps_codes = config.quantize == "auto"
    model = build_model(folder, whole, checkpoint, dtype, keeps_codes)
    num_coded = sum(isinstance(module, CodedLinear) for module in model.modules())
    if not num_coded:
        return model.to(device), None
    if device.type != "cpu":
        raise EngineError(
            f"quantize: weights quantized by {checkpoint.method} have no products on a GPU here; "
            "with 'none' they are widened, and take the memory of the original"
        )
    _log.info("%d products stay as they were quantized by %s", num_coded, checkpoint.method)
    return model, checkpoint.method


def _fused(
    eager: EagerDecoder, config: EngineConfig, quantized_by: str | None, shard: Shard | None
) -> FusedDecoder | None:
    """The model's layers, or a rank's part of them, fused; None where its family is not known."""
    most = max(config.max_context_tokens, SAMPLE_TOKENS) if config.max_context_tokens else None
    try:
        return fuse(
            eager.model,
            eager.calls,
            most,
            quantization="none" if config.quantize == "auto" else config.quantize,
            batch_invariant=config.batch_invariant,
            shard=shard,
        )
    except Unfamiliar as reason:
        setting = _needs_fusing(config, quantized_by)
        if setting is not None:
            raise EngineError(f"{setting}: not for this model: {reason}") from None
        _log.info("layers are not fused: %s", reason)
        return None


def _needs_fusing(config: EngineConfig, quantized_by: str | None) -> str | None:
    """A setting that the model's own layers cannot serve, if there is one."""
    if config.quantize in ("int8", "int4") or quantized_by:
        return "quantize"
    if config.tensor_parallel > 1:
        return "tensor_parallel"
    return "batch_invariant" if config.batch_invariant else None


def _layout(eager: EagerDecoder, by_kinds: bool) -> AttentionLayout:
    return AttentionLayout(tuple(eager.calls), by_kinds)


def _cut(layout: AttentionLayout, shard: Shard | None) -> AttentionLayout:
    """Of a rank's part of the model."""
    if shard is None:
        return layout
    calls = []
    for call in layout.calls:
        require_heads(call.num_kv_heads, shard)
        group, num_kv_heads = call.num_heads // call.num_kv_heads, shard.count(call.num_kv_heads)
        calls.append(replace(call, num_heads=group * num_kv_heads, num_kv_heads=num_kv_heads))
    return replace(layout, calls=tuple(calls), whole=layout)


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    eos = model.generation_config.eos_token_id
    if eos is None:
        eos = model.config.get_text_config().eos_token_id
    return tuple([eos] if isinstance(eos, int) else eos or [])


def _paged_logits(model: PagedModel, ids: list[int]) -> Tensor:
    num_columns = model.pages.num_columns
    parts = in_parts(ids, model.block_size, model.device, num_columns)
    model.allocate(-(-len(ids) // model.block_size) * num_columns)
    return torch.cat([model.forward(part) for part in parts])


def _tolerance(model: PagedModel, config: EngineConfig, own_error: float) -> float:
    """Relative error of logits up to which they count as the same.

    Those of two models that have nothing in common differ by 1.4. `own_error` is what the weights'
    type costs the model itself.
    """
    if config.quantize == "int4":
        return 1.0
    if config.quantize == "int8" or model.weights.quantized_by:
        return 0.3
    rounding = max(TOLERANCE, _ROUNDING * own_error)
    return rounding if model.kv_storage == model.dtype else rounding + _CACHE_ROUNDING


def _return_memory(device: torch.device) -> None:
    """Give the originals' memory back: to the system, or to whoever allocates on the GPU next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises `EngineError` for one that is not there."""
    has_gpu = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if has_gpu else "cpu"
    if name == "cuda" and not has_gpu:
        lack = "was built without CUDA" if torch.version.cuda is None else "finds no GPU"
        raise EngineError(
            f"device: torch {lack}; have a driver and a torch for it, or choose cpu or auto"
        )
    return torch.device(name)


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
    folder = Path(config.model_path)
    files = (*folder.glob("*.safetensors"), *folder.glob("*.gguf"))
    stored = sum(file.stat().st_size for file in files)
    widened = 2 * stored
    small = widened <= available_memory() / 4
    return torch.float32 if small else torch.bfloat16
