"""Every Triton kernel at the shapes of real models, as `kernels.compile_check` compiles them."""

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
from kernels.triton.walk import Tiling, dot_type

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
    dim: int


SHAPES = {
    64: Shape(9, 3, 64, 576),  # SmolLM2-135M
    128: Shape(32, 8, 128, 4096),  # Llama-3-8B
    256: Shape(8, 4, 256, 2304),  # Gemma-2-2B
}


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
    """All kernels; those that walk keys without options of attention, with all, and quantized."""
    for dtype in dtypes:
        of_type = str(dtype).removeprefix("torch.")
        for head_dim in head_dims:
            shape = SHAPES[head_dim]
            name = f"{of_type} {head_dim}"
            yield from _walks(name, dtype, shape, arch)
            yield from _walks(f"{name} window softcap", dtype, shape, arch, 4096, 50.0)
            for stored in ("int8", "fp8"):
                yield from _walks(f"{name} {stored}", dtype, shape, arch, stored=stored)
                yield _write(f"{name} {stored}", dtype, shape, stored)
            yield _write(name, dtype, shape, "auto")
            yield _merge(name, dtype, shape, arch)
            yield from _layers(name, dtype, shape)
        yield from _linear(of_type, dtype)
        yield from _scores(of_type, dtype)


def _walks(
    name: str,
    dtype: torch.dtype,
    shape: Shape,
    arch: int,
    window: int = 0,
    softcap: float = 0.0,
    stored: str = "auto",
) -> Iterator[Variant]:
    """Prefill, decode, and shared prefixes, which layers with a window have not."""
    group = shape.num_heads // shape.num_kv_heads
    constants = {
        "HEAD_DIM": shape.head_dim,
        "GROUP": group,
        "WINDOW": window,
        "SOFTCAP": softcap,
        "BLOCK_SIZE": _BLOCK_SIZE,
        "DOT_TYPE": dot_type(dtype),
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

    cut = prefill.tiling(group, shape.head_dim, dtype, arch, plain=stored == "auto" and not softcap)
    yield variant(prefill.attend_chunk, cut)
    alone = dict.fromkeys(("shared", "table", "seqs.private_starts_ptr"))
    programs = decode.programs_per_processor(shape.head_dim, quantized=stored != "auto", arch=arch)
    cut = decode.tiling(group, shape.head_dim, dtype, programs)
    own = {"SEQS": _SEQS, "UNIT": cut.keys, "FIXED": False, "GROUPS": _GROUPS}
    yield variant(decode.attend_own, cut, **own, SHARED_UNIT=0, **alone)
    if not window:
        shared = grouped.tiling(group, _MEMBERS, shape.head_dim, dtype, arch)
        yield variant(grouped.attend_shared, shared, GROUPS=_GROUPS)
        merging = variant(decode.attend_own, cut, **own, SHARED_UNIT=shared.keys)
        yield replace(merging, name=f"{merging.name} grouped")


def _merge(name: str, dtype: torch.dtype, shape: Shape, arch: int) -> Variant:
    group = shape.num_heads // shape.num_kv_heads
    constants: dict[str, Any] = {
        "HEAD_DIM": shape.head_dim,
        "GROUP": group,
        "ROWS": prefill.tiling(group, shape.head_dim, dtype, arch, plain=True).rows,
        "MERGED_ROWS": prefill.MERGED_ROWS,
    }
    return Variant(f"merge_chunk {name}", prefill.merge_chunk, dtype, constants)


def _write(name: str, dtype: torch.dtype, shape: Shape, stored: str) -> Variant:
    heads = cache.heads_per_program(shape.num_kv_heads, shape.head_dim)
    constants = {"HEAD_DIM": shape.head_dim, "BLOCK_SIZE": _BLOCK_SIZE, "HEADS": heads}
    types = {"kv.ptr": _STORED[stored]} if stored != "auto" else {}
    return Variant(f"write_slots {name}", cache.write_slots, dtype, constants, types=types)


def _layers(name: str, dtype: torch.dtype, shape: Shape) -> Iterator[Variant]:
    options = layers.norm_options(shape.dim)
    yield Variant(f"add_and_norm {name}", layers.add_and_norm, dtype, {"DIM": shape.dim}, options)
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
    gate = {"BLOCK": layers.GATE_BLOCK, "GELU": True}
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
