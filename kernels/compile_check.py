"""Compiles every Triton kernel, at the shapes of real models, for GPUs that need not be there.

`python -m kernels.compile_check [--arch 80 90 100] [--only REGEX] [--json]` prints registers,
shared memory and spills of every kernel; the exit status is 1 if a kernel spills.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

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
from kernels.triton.arguments import Groups, Sequences
from kernels.triton.walk import Tiling, dot_type, latent_heads

_BLOCK_SIZE = 16
_MEMBERS = 16
_SEQS = 64
_GROUPS = 64
_STORED = {"auto": "", "int8": "*i8", "fp8": "*u8"}
_ARCHITECTURES = (80, 90, 100)
_POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}
_INDICES = {"tables_ptr", "parts_ptr", "merges_ptr", "arrivals_ptr", "query_starts_ptr"}
_INDICES |= {*Sequences._fields, *Groups._fields}
_FP32 = {"outputs_ptr", "sums_ptr", "sinks_ptr", "cos_ptr", "sin_ptr"}
_ALIGNED = re.compile(r"(?!table_stride)(.*[._])?(ptr|stride)|depth|columns|piece|inter")


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


@dataclass(frozen=True, slots=True)
class Usage:
    """What one compiled kernel takes of a GPU."""

    kernel: str
    arch: int
    registers: int  # of a thread
    shared_bytes: int  # of a program
    spill_bytes: int  # of a thread: its stack, which holds nothing but spilled registers


def compile_variant(variant: Variant, arch: int) -> Usage:
    """Compile for compute capability `arch` (90: sm_90). Raises what Triton raises."""
    signature, places = _signature(variant)
    constants = {places[name]: value for name, value in variant.constants.items()}
    # What a launch knows of real tensors: addresses, strides and widths divide by 16.
    aligned = {
        place: [["tt.divisibility", 16]]
        for name, place in places.items()
        if _ALIGNED.fullmatch(name) and name not in variant.constants
    }
    source = ASTSource(variant.kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=variant.options)
    report = _resource_usage(compiled.asm["cubin"])
    usage = re.search(r"REG:(\d+) STACK:(\d+)", report)
    if usage is None:
        raise RuntimeError(f"cuobjdump said nothing of {variant.name}: {report}")
    return Usage(variant.name, arch, int(usage[1]), compiled.metadata.shared, int(usage[2]))


def main(arguments: list[str] | None = None) -> int:
    """Compile, print, and tell by the exit status whether all kernels are free of spills."""
    parser = argparse.ArgumentParser(prog="python -m kernels.compile_check", description=__doc__)
    parser.add_argument("--arch", type=int, nargs="+", default=_ARCHITECTURES)
    parser.add_argument("--head-dim", type=int, nargs="+", choices=HEAD_DIMS, default=HEAD_DIMS)
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=("float16", "bfloat16", "float32"),
        default=("float16", "bfloat16"),
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="kernels with such names")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    options = parser.parse_args(arguments)
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: an interpreted kernel cannot be compiled")
    dtypes = tuple(getattr(torch, name) for name in options.dtype)
    usages = [
        compile_variant(variant, arch)
        for arch in options.arch
        for variant in variants(dtypes, tuple(options.head_dim), arch)
        if re.search(options.only, variant.name)
    ]
    if options.json:
        print(json.dumps([asdict(usage) for usage in usages], indent=1))
    else:
        print(f"{'kernel':<56} {'arch':>6} {'registers':>9} {'shared B':>9} {'spill B':>8}")
        for usage in usages:
            print(
                f"{usage.kernel:<56} {'sm_' + str(usage.arch):>6} {usage.registers:>9} "
                f"{usage.shared_bytes:>9} {usage.spill_bytes:>8}"
            )
    return int(any(usage.spill_bytes for usage in usages))


def _signature(variant: Variant) -> tuple[dict[str, object], dict[str, tuple[int, ...]]]:
    """The types of all arguments, and where each of them and of their fields stands."""
    signature: dict[str, object] = {}
    places: dict[str, tuple[int, ...]] = {}
    for position, name in enumerate(variant.kernel.arg_names):
        kind = None if name in variant.constants else variant.tuple_of(name)
        if kind is None:
            signature[name], places[name] = _type(name, variant), (position,)
            continue
        fields = [f"{name}.{field}" for field in kind._fields]
        signature[name] = kind(*(_type(field, variant) for field in fields))
        places |= {field: (position, index) for index, field in enumerate(fields)}
    return signature, places


def _type(name: str, variant: Variant) -> str:
    if name in variant.constants:
        return "constexpr"
    if name in variant.types:
        return variant.types[name]
    name = name.rpartition(".")[2]
    if name in _INDICES:
        return "*i32"
    if name in ("slots_ptr", "positions_ptr"):
        return "*i64"
    if name in _FP32:
        return "*fp32"
    if name.endswith("ptr"):
        return _POINTERS[variant.dtype]
    return "fp32" if name in ("scale", "eps") else "i32"


def _resource_usage(cubin: bytes) -> str:
    """What the machine code says of itself: `REG:40 STACK:0 SHARED:0 ...`."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
