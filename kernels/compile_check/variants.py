"""Every Triton kernel, with what it is compiled for at the shapes of real models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernels.triton import (
    arguments,
    cache,
    decode,
    grouped,
    layers,
    linear,
    penalties,
    prefill,
    sampling,
)
from kernels.triton.adapters import products as ranks
from kernels.triton.experts import products, routing, rows
from kernels.triton.recurrent import convolutions, delta, scans
from kernels.triton.walk import Tiling, dot_type, latent_heads
from kernels.types import Routing

_BLOCK_SIZE = 16
_MEMBERS = 16
_SEQS = 64
_GROUPS = 64
_STORED = {"auto": "", "int8": "*i8", "fp8": "*u8"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides how kernels are compiled."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Of values."""
    dim: int
    key_rest: int = 0
    """What keys of latents have besides."""

    def group(self, dtype: torch.dtype, *, quantized: bool) -> int:
        """Query heads of a tile, which share a KV head."""
        if self.key_rest:
            return latent_heads(self.num_heads, dtype, quantized=quantized)
        return self.num_heads // self.num_kv_heads


SHAPES = (
    Shape(9, 3, 64, 576),  # SmolLM2-135M
    Shape(32, 8, 128, 4096),  # Llama-3-8B
    Shape(8, 4, 256, 2304),  # Gemma-2-2B
    Shape(16, 1, 512, 2048, key_rest=64),  # DeepSeek-V2-Lite
    Shape(128, 1, 512, 7168, key_rest=64),  # DeepSeek-V3
)
_ROUTINGS = {
    "Granite-3.1-1B-A400M": Routing(32, 8, "softmax"),
    "gpt-oss-20b": Routing(32, 4, "softmax"),
    "Phi-3.5-MoE": Routing(16, 2, "softmax_near_best", is_normalised=False, margin=0.01),
    "Qwen3-30B-A3B": Routing(128, 8, "softmax"),
    "DeepSeek-V3": Routing(256, 8, "sigmoid", torch.empty(0), num_groups=8, kept_groups=4),
}
HEAD_DIMS = sorted({shape.head_dim for shape in SHAPES})


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with the arguments it is compiled for; `kv.ptr` is a field of the tuple `kv`."""

    name: str
    kernel: Any
    dtype: torch.dtype
    constants: dict[str, Any]
    options: Mapping[str, int | None] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # where they differ from the dtype's

    def tuple_of(self, argument: str) -> Any:
        """The named tuple that the kernel takes there; `None` for other arguments."""
        annotation = str(self.kernel.signature.parameters[argument].annotation)
        return getattr(arguments, annotation.removesuffix(" | None"), None)


def variants(
    dtypes: tuple[torch.dtype, ...], head_dims: tuple[int, ...], arch: int
) -> Iterator[Variant]:
    """All kernels; those that walk keys with no option of attention, sinks, all, and quantized."""
    for dtype in dtypes:
        of_type = str(dtype).removeprefix("torch.")
        for shape in SHAPES:
            if shape.head_dim not in head_dims:
                continue
            name = f"{of_type} {shape.head_dim}"
            if shape.key_rest:
                name += f"+{shape.key_rest} of {shape.num_heads} heads"
            else:
                yield from _layers(name, dtype, shape)
            yield from _walks(name, dtype, shape, arch)
            yield from _walks(f"{name} sinks", dtype, shape, arch, sinks=True)
            yield from _walks(
                f"{name} every option",
                *(dtype, shape, arch),
                window=4096,
                softcap=50.0,
                chunk=8192,
                sinks=True,
            )
            for stored in ("int8", "fp8"):
                yield from _walks(f"{name} {stored}", dtype, shape, arch, stored=stored)
                yield _write(f"{name} {stored}", dtype, shape, stored)
            yield _write(name, dtype, shape, "auto")
            yield _merge(name, dtype, shape, arch)
            yield _merge(f"{name} sinks", dtype, shape, arch, sinks=True)
        yield from _linear(of_type, dtype)
        yield from _scores(of_type, dtype)
        yield from _adapters(of_type, dtype)
        yield from _experts(of_type, dtype)
        yield from _recurrent(of_type, dtype)
    for model, chosen in _ROUTINGS.items():
        yield from _routing(f"experts of {model}", chosen)


def _walks(
    name: str,
    dtype: torch.dtype,
    shape: Shape,
    arch: int,
    *,
    window: int = 0,
    softcap: float = 0.0,
    chunk: int = 0,
    sinks: bool = False,
    stored: str = "auto",
) -> Iterator[Variant]:
    """Prefill, decode, and shared prefixes, which layers with a window have not."""
    quantized = stored != "auto"
    group = shape.group(dtype, quantized=quantized)
    constants = {
        "HEAD_DIM": shape.head_dim,
        "KEY_REST": shape.key_rest,
        "GROUP": group,
        "WINDOW": window,
        "CHUNK": chunk,
        "SOFTCAP": softcap,
        "BLOCK_SIZE": _BLOCK_SIZE,
        "DOT_TYPE": dot_type(dtype),
        **_without(sinks),
    }
    types = {"kv.ptr": _STORED[stored]} if stored != "auto" else {}

    def variant(kernel: Any, tiling: Tiling, **more: Any) -> Variant:
        options = tiling.options()
        cut = {"ROWS": tiling.rows, "TILE": options.pop("TILE")}
        every = constants | cut | more
        known = {
            key: value for key, value in every.items() if key.split(".")[0] in kernel.arg_names
        }
        return Variant(f"{kernel.__name__} {name}", kernel, dtype, known, options, types)

    plain = stored == "auto" and not softcap and not chunk
    cut = prefill.tiling(group, shape.head_dim, dtype, arch, plain=plain)
    yield variant(prefill.attend_chunk, cut)
    alone = dict.fromkeys(("shared", "table", "seqs.private_starts_ptr"))
    programs = decode.programs_per_processor(shape.head_dim, quantized=quantized, arch=arch)
    cut = decode.tiling(
        group, shape.head_dim, dtype, programs, quantized=quantized, chunked=chunk > 0
    )
    own = {"SEQS": _SEQS, "UNIT": cut.keys, "FIXED": False, "GROUPS": _GROUPS}
    yield variant(decode.attend_own, cut, **own, SHARED_UNIT=0, **alone)
    if not window and not chunk:
        shared = grouped.tiling(group, _MEMBERS, shape.head_dim, dtype, arch, quantized=quantized)
        yield variant(grouped.attend_shared, shared, GROUPS=_GROUPS)
        merging = variant(decode.attend_own, cut, **own, SHARED_UNIT=shared.keys)
        yield replace(merging, name=f"{merging.name} grouped")


def _merge(
    name: str, dtype: torch.dtype, shape: Shape, arch: int, *, sinks: bool = False
) -> Variant:
    group = shape.group(dtype, quantized=False)
    constants: dict[str, Any] = {
        "HEAD_DIM": shape.head_dim,
        "GROUP": group,
        "ROWS": prefill.tiling(group, shape.head_dim, dtype, arch, plain=True).rows,
        "MERGED_ROWS": prefill.MERGED_ROWS,
        **_without(sinks),
    }
    return Variant(f"merge_chunk {name}", prefill.merge_chunk, dtype, constants)


def _without(sinks: bool) -> dict[str, None]:
    """What a kernel is told where there are none."""
    return {} if sinks else {"sinks_ptr": None}


def _write(name: str, dtype: torch.dtype, shape: Shape, stored: str) -> Variant:
    row = shape.head_dim + shape.key_rest
    heads = cache.heads_per_program(shape.num_kv_heads, row)
    constants: dict[str, Any] = {"HEAD_DIM": row, "BLOCK_SIZE": _BLOCK_SIZE, "HEADS": heads}
    if shape.key_rest:
        constants["value"] = None
    types = {"kv.ptr": _STORED[stored]} if stored != "auto" else {}
    return Variant(f"write_slots {name}", cache.write_slots, dtype, constants, types=types)


def _layers(name: str, dtype: torch.dtype, shape: Shape) -> Iterator[Variant]:
    options = layers.norm_options(shape.dim)
    norm = {"DIM": shape.dim, "CENTRES": True}
    yield Variant(f"add_and_norm {name} centred", layers.add_and_norm, dtype, norm, options)
    plain = {"DIM": shape.dim, "CENTRES": False, "bias_ptr": None}
    yield Variant(f"add_and_norm {name}", layers.add_and_norm, dtype, plain, options)
    all_heads = shape.num_heads + 2 * shape.num_kv_heads
    rotate = {
        "HEAD_DIM": shape.head_dim,
        "HALF": shape.head_dim // 2,
        "BLOCK_SIZE": _BLOCK_SIZE,
        "HEADS": cache.heads_per_program(all_heads, shape.head_dim),
    }
    kernel = layers.rotate_and_store
    plain = rotate | dict.fromkeys(("norms.query_weight_ptr", "norms.key_weight_ptr"))
    yield Variant(f"rotate_and_store {name}", kernel, dtype, plain)
    fp8 = {"kv.ptr": _STORED["fp8"]}
    yield Variant(f"rotate_and_store {name} normed fp8", kernel, dtype, rotate, types=fp8)
    gate = {"BLOCK": layers.GATE_BLOCK, "ACTIVATION": "gelu_tanh", "PLAIN": False}
    yield Variant(f"activate_and_multiply {name}", layers.activate_and_multiply, dtype, gate)


def _linear(name: str, dtype: torch.dtype) -> Iterator[Variant]:
    options = dict(linear.options(dtype))
    depth = options.pop("DEPTH")
    constants = {
        "ROWS": linear.ROWS,
        "COLUMNS": linear.COLUMNS,
        "DEPTH": depth,
        "DOT_TYPE": dot_type(dtype),
        "bias_ptr": None,
    }
    yield Variant(f"multiply {name}", linear.multiply, dtype, constants, options)
    add = {"BLOCK": linear.ADD_BLOCK, "bias_ptr": None}
    yield Variant(f"add_pieces {name}", linear.add_pieces, dtype, add)


def _scores(name: str, dtype: torch.dtype) -> Iterator[Variant]:
    """What passes over scores: draws, penalties, masks."""
    types = {"tokens_ptr": "*i64", "states_ptr": "*i64", "numbers_ptr": "*fp64"}
    options = {"num_warps": sampling.NUM_WARPS}
    constants = {"BLOCK": sampling.BLOCK}
    yield Variant(f"draw_rows {name}", sampling.draw_rows, dtype, constants, options, types)
    types = {"output_ptr": "*fp32", "counts_ptr": "*i32", "numbers_ptr": "*fp32"}
    constants, options = {"BLOCK": penalties.BLOCK}, penalties.OPTIONS
    yield Variant(
        f"penalise_rows {name}", penalties.penalise_rows, dtype, constants, options, types
    )
    types = {"words_ptr": "*i32", "places_ptr": "*i64"}
    constants, options = {"BLOCK": sampling.MASKING_BLOCK}, sampling.MASKING_OPTIONS
    yield Variant(f"mask_rows {name}", sampling.mask_rows, dtype, constants, options, types)


def _adapters(name: str, dtype: torch.dtype) -> Iterator[Variant]:
    """Of rows that are whole vectors, as those of real models are, and of any others; and back from
    experts, whose results are wide."""
    types = {"taken_ptr": "*fp32", "order_ptr": "*i64", "blocks_ptr": "*i64"}
    given = ranks.take_options(dtype) | {"DOT_TYPE": dot_type(dtype)}, ranks.give_options(dtype)
    for kernel, options in zip((ranks.take_ranks, ranks.give_columns), given, strict=True):
        known = {key: value for key, value in options.items() if key in kernel.arg_names}
        rest = {key: value for key, value in options.items() if key not in known}
        for vector, of_experts in ((1, False), (16 // dtype.itemsize, False), (8, True)):
            at = f"{kernel.__name__} {name} by {vector}" + " of experts" * of_experts
            constants = known | {"VECTOR": vector, "OF_EXPERTS": of_experts}
            wide = {"output_ptr": "*fp32"} if of_experts else {}
            yield Variant(at, kernel, dtype, constants, rest, types | wide)


def _experts(name: str, dtype: torch.dtype) -> Iterator[Variant]:
    """Products there and back, plain and with biases, which those of gpt-oss have."""
    indices = {"order_ptr": "*i32", "blocks_ptr": "*i32"}
    wide = {"output_ptr": "*fp32"}
    kernel = products.multiply_by_expert
    for tile in products.tiles(dtype):
        options = tile.options()
        cut = {key: options.pop(key) for key in ("ROWS", "COLUMNS", "DEPTH")}
        constants: dict[str, Any] = {**cut, "DOT_TYPE": dot_type(dtype)}
        for way, gathers, types in (("there", True, indices), ("back", False, indices | wide)):
            both = constants | {"GATHERS": gathers}
            at = f"{kernel.__name__} {name} experts by {tile.rows} {way}"
            yield Variant(at, kernel, dtype, both | {"bias_ptr": None}, options, types)
            yield Variant(f"{at}, biases", kernel, dtype, both, options, types)
    add = {"BLOCK": products.ADD_BLOCK}
    types = {"parts_ptr": "*fp32", "shares_ptr": "*fp32"}
    kernel = products.add_weighted
    yield Variant(f"{kernel.__name__} {name} experts", kernel, dtype, add, types=types)
    kernel, types = products.add_gated, {"gates_ptr": "*fp32"}
    yield Variant(f"{kernel.__name__} {name} experts", kernel, dtype, add, types=types)


def _recurrent(name: str, dtype: torch.dtype) -> Iterator[Variant]:
    """Of Qwen3.5 and Kimi Linear, Mamba-2 in Granite 4-H, and convolutions as in LFM2 and all."""
    kernel = delta.apply_delta
    rows = {"q.head_stride": 128, "k.head_stride": 128, "v.head_stride": 128}
    shape = {"KEY_DIM": 128, "VALUE_DIM": 128, "BLOCK": delta.value_block(128, 128)}
    types = {"decay_ptr": "*fp32", "states.ptr": "*fp32"}
    for kind, by_key in (("gdn", False), ("kda", True)):
        constants: dict[str, Any] = {**rows, **shape, "BY_KEY": by_key}
        yield Variant(f"{kernel.__name__} {name} {kind}", kernel, dtype, constants, types=types)
    kernel, floats = scans.scan_runs, ("dt_ptr", "a_ptr", "d_ptr", "states.ptr")
    rows = {"x.head_stride": 64, "b.head_stride": 128, "c.head_stride": 128}
    constants = {**rows, "HEAD_DIM": 64, "STATE_DIM": 128, "BLOCK": scans.row_block(64, 128)}
    types = dict.fromkeys(floats, "*fp32")
    yield Variant(f"{kernel.__name__} {name}", kernel, dtype, constants, types=types)
    kernel = convolutions.convolve_runs
    for width, activated in ((3, False), (4, True)):
        for tokens in (1, convolutions.TOKENS):
            constants = {"WIDTH": width, "ACTIVATED": activated, "bias_ptr": None}
            constants |= {"TOKENS": tokens, "BLOCK": convolutions.BLOCK}
            at = f"{kernel.__name__} {name} over {width} by {tokens}"
            yield Variant(at, kernel, dtype, constants)


def _routing(name: str, chosen: Routing) -> Iterator[Variant]:
    """Of any type of model: routers' results are float32."""
    types = {"chosen_ptr": "*i32", "order_ptr": "*i32", "blocks_ptr": "*i32", "uses_ptr": "*i64"}
    types |= dict.fromkeys(("least_sum", "margin"), "fp32")
    constants = routing.constants(chosen)
    if chosen.correction is None:
        constants["correction_ptr"] = None
    options = {"num_warps": routing.NUM_WARPS}
    kernel = routing.choose_experts
    yield Variant(f"{kernel.__name__} {name}", kernel, torch.float32, constants, options, types)
    constants = {"NUM_EXPERTS": chosen.num_experts, "TILE": rows.TILE, "ROWS": 16}
    kernel = rows.sort_by_expert
    yield Variant(f"{kernel.__name__} {name}", kernel, torch.float32, constants, types=types)
