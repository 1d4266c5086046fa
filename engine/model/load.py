"""From a model folder to a paged model that computes what the model itself does.

`transformers` owns definition, weights and configuration. Whatever is made of them is compared with
the model's own logits, at start, unless that was done before.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.api import EngineError, UnsupportedModel
from engine.config import EngineConfig
from engine.model.layers.description import exact_products
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.eager.products import exact_modules, pack_products, unpacked
from engine.model.layers.expected import Unfamiliar
from engine.model.layers.families import describe
from engine.model.layers.fused import FusedDecoder, fuse
from engine.model.layers.layout import AttentionLayout
from engine.model.layers.leader import Followers, LeadingModel
from engine.model.layers.paged_model import PagedModel, Weights
from engine.model.layers.shard import Shard, input_widths, require_heads
from engine.model.layers.turning import SPARE_ROWS
from engine.model.original import Original, choose_dtype, load_original, max_positions
from engine.model.rounded import rounded_logits, roundings
from engine.model.self_check import (
    TOLERANCE,
    Kept,
    checked_logits,
    in_parts,
    num_pages_of,
    relative_error,
    rounding_error,
    sample,
    shortened,
)
from engine.model.sight.tower import Tower
from engine.model.widened import in_float32
from kernels import recurrent
from kernels.native.library import available
from kernels.types import Quantization

_log = logging.getLogger(__name__)

_ROUNDING = 2.5
"""Times the error that the same roundings make in the model's own layers: others may make that, who
round elsewhere or sum up in another order. Right layers were seen to make 0.7 to 1.2 times that.
"""
_QUANTIZED = {"int8": 0.3, "int4": 1.0}
"""What rounding all weights may cost at most."""
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
    kept = None if followers else Kept(config, device, choose_dtype(config, device), by_kinds)
    if kept is not None and kept.error is not None:
        model = _load_unchecked(config, device, by_kinds)
        model.logit_error = kept.error
        return model
    model, error = _load(config, device, followers, by_kinds)
    if kept is not None and error is None:
        kept.keep(model.logit_error)
    needs_fusing = _needs_fusing(config, model.weights.quantized_by) is not None
    if error is not None and model.weights.is_fused and not needs_fusing:
        _log.warning("fused layers differ from the model's own (by %.2g), which serve now", error)
        del model
        model, error = _load(config, device, None, by_kinds, may_fuse=False)
    if error is not None:
        raise UnsupportedModel(
            f"{config.model_path}: paged logits differ from the model's own "
            f"(relative error {error:.2g})"
        )
    return model


def load_shard(config: EngineConfig, shard: Shard, by_kinds: bool) -> PagedModel:
    """The part of a rank behind the first, which checks the whole. For `by_kinds` and errors see
    `load_model`.
    """
    model = _load_unchecked(config, choose_device(config.device), by_kinds, shard)
    model.rank = shard.rank
    return model


def _load_unchecked(
    config: EngineConfig, device: torch.device, by_kinds: bool, shard: Shard | None = None
) -> PagedModel:
    original = load_original(config, device)
    weights = _weights(original, config, _cut(original.eager.layout(by_kinds), shard), shard)
    del original
    _return_memory(device)
    return PagedModel(weights, config.block_size, config.kv_dtype, config.batch_invariant)


def _load(
    config: EngineConfig,
    device: torch.device,
    followers: Followers | None,
    by_kinds: bool,
    may_fuse: bool = True,
) -> tuple[PagedModel, float | None]:
    """The model, and how far its logits are off if that is too far.

    Raises `UnsupportedModel` if its attention cannot be paged.
    """
    original = load_original(config, device)
    whole = original.eager.layout(by_kinds)
    ids = sample(original.text.vocab_size)
    shard = None if followers is None else followers.shard
    with shortened(original.eager):
        expected = checked_logits(original.eager, ids, config.block_size)
        if shard is None:
            yardstick, rounding = _yardstick(original, config, None, ids, expected)
    if shard is not None:  # other ranks have all their windows
        with in_float32(original.eager.model):
            expected = original.eager.own_logits(ids)
        yardstick, rounding = _yardstick(original, config, shard, ids, expected)
    weights = _weights(original, config, _cut(whole, shard), shard, may_fuse)
    has_experts = original.eager.has_experts
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
    with shortened(weights.decoder) if shard is None else nullcontext():
        logits = _paged_logits(paged, ids)
    paged.logit_error = relative_error(logits, expected)
    error, cost = (rounding_error(logits, of, has_experts) for of in (yardstick, expected))
    is_right = error < _tolerance(paged, rounding)
    is_near = cost < _QUANTIZED.get(config.quantize, math.inf)
    return paged, None if is_right and is_near else max(error, cost)


def _yardstick(
    original: Original, config: EngineConfig, shard: Shard | None, ids: list[int], expected: Tensor
) -> tuple[Tensor, float]:
    """Logits that those of the served model should be near, and the error of rounding as it does.

    `expected` are the model's own, in float32. Raises `EngineError` if products are to be rounded
    of which nothing is known.
    """
    eager, dtype = original.eager, original.dtype
    quantization: Quantization = "none" if config.quantize == "auto" else config.quantize
    if quantization != "none" or original.quantized_by:
        cuts, exact = None, exact_modules(eager.model)
        if not _packs(eager):
            try:
                description = describe(eager.model, eager.calls, max_positions(config))
            except Unfamiliar as reason:
                raise EngineError(f"quantize: not for this model: {reason}") from None
            exact = exact_products(description)
            cuts = None if shard is None else input_widths(description, shard.size)
        found = roundings(eager.model, quantization, cuts, exact)
        return rounded_logits(eager, ids, dtype, found)
    own_error = 0.0
    if dtype != torch.float32:
        own_error = rounding_error(eager.own_logits(ids), expected, eager.has_experts)
    return expected, own_error


def _weights(
    original: Original,
    config: EngineConfig,
    layout: AttentionLayout,
    shard: Shard | None,
    may_fuse: bool = True,
) -> Weights:
    """What computes in place of the original, whose own weights are given up if it is fused."""
    eager = original.eager
    decoder = (_fused(original, config, shard) if may_fuse else None) or eager
    tower = original.tower
    if tower is not None and (blind := _blind(config, tower, decoder)):
        _log.warning("pictures are refused: %s", blind)
        tower = None
    return Weights(
        decoder=decoder,
        layout=layout,
        config=original.text,
        eos_token_ids=_eos_token_ids(eager.model),
        device=original.device,
        dtype=original.dtype,
        rotary_switch=eager.rotary_switch,
        limits_prompts=eager.limits_prompts,
        quantized_by=original.quantized_by,
        tower=tower,
    )


def _blind(config: EngineConfig, tower: Tower, decoder: FusedDecoder | EagerDecoder) -> str | None:
    """Why nothing is seen, if that is so."""
    if config.tensor_parallel > 1:
        return "tensor_parallel: one process sees them"
    if tower.axes is not None and isinstance(decoder, EagerDecoder):
        return None if decoder.turns_by_parts else "layers that are not fused turn by one place"
    if tower.axes is not None and (config.step_token_budget or 0) > SPARE_ROWS:
        return f"step_token_budget: at most {SPARE_ROWS} tokens of pictures in a step"
    return None


def _fused(original: Original, config: EngineConfig, shard: Shard | None) -> FusedDecoder | None:
    """The model's layers, or a rank's part of them, fused; None where its family is not known."""
    eager, tower = original.eager, original.tower
    try:
        return fuse(
            eager.model,
            eager.calls,
            max_positions(config),
            quantization="none" if config.quantize == "auto" else config.quantize,
            batch_invariant=config.batch_invariant,
            shard=shard,
            axes=None if tower is None else tower.axes,
        )
    except Unfamiliar as reason:
        if _packs(eager):
            _log.info("layers are not fused, their products are packed: %s", reason)
            if config.batch_invariant:
                _require_packed(eager.model)
            quantization: Quantization = "none" if config.quantize == "auto" else config.quantize
            invariant = config.batch_invariant
            pack_products(eager.model, quantization, batch_invariant=invariant, shard=shard)
            return None
        setting = _needs_fusing(config, original.quantized_by)
        if setting is not None:
            raise EngineError(f"{setting}: not for this model: {reason}") from None
        _log.info("layers are not fused: %s", reason)
        return None


def _packs(eager: EagerDecoder) -> bool:
    """Whether products alone are packed, of a model's own modules: where some keep a state, of
    which no family is fused.
    """
    return eager.has_states and eager.model.device.type == "cpu" and available()


def _require_packed(model: PreTrainedModel) -> None:
    """Raises `EngineError` for modules whose results depend on how many rows there are."""
    others = unpacked(model)
    if others:
        problem = f"'{others[0]}' multiplies by weights that are not packed"
        raise EngineError(f"batch_invariant: not for this model: {problem}")
    if model.dtype not in recurrent.COMPILED:
        raise EngineError(f"batch_invariant: no kernel keeps states of a model in {model.dtype}")


def _needs_fusing(config: EngineConfig, quantized_by: str | None) -> str | None:
    """A setting that the model's own layers cannot serve, if there is one."""
    if config.quantize in ("int8", "int4") or quantized_by:
        return "quantize"
    if config.tensor_parallel > 1:
        return "tensor_parallel"
    return "batch_invariant" if config.batch_invariant else None


def _cut(layout: AttentionLayout, shard: Shard | None) -> AttentionLayout:
    """Of a rank's part of the model; each has all that a model with states keeps."""
    if shard is None or layout.states:
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
    parts = in_parts(ids, model.block_size, model.device, model.pages)
    model.allocate(num_pages_of(ids, model.block_size, model.pages))
    return torch.cat([model.forward(part) for part in parts])


def _tolerance(model: PagedModel, rounding: float) -> float:
    """Relative error of logits up to which they count as the same.

    Those of two models that have nothing in common differ by 1.4. `rounding` is what the model's
    own layers lose by it.
    """
    tolerance = max(TOLERANCE, _ROUNDING * rounding)
    return tolerance if model.kv_storage == model.dtype else tolerance + _CACHE_ROUNDING


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
